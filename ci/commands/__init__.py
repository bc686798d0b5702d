"""Commands that plan and execute over processes and hosts."""
