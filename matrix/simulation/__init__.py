"""The engine's loop, scheduler and ledger on a toy device: many small schedules, every law, every token."""
