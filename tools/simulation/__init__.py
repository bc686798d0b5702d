"""Simulates the engine's loop, scheduler and ledger on a toy device: random schedules, all laws and tokens checked."""
