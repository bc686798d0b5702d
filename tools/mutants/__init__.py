"""Small random changes of the sources, by mutmut's operators, and what kills them."""
