"""Gates: PASS, FAIL or NOT MEASURED, each with numbers and an interval."""
