"""Users' algorithms for the incident about extension points; each file registers one."""
