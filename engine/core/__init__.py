"""Ring 0: request, ledger, scheduler and configuration logic; standard library only."""
