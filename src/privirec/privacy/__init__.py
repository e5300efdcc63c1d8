"""Policies, rules on cohorts, the ledger, accounting, and attacks on releases."""
