"""What the programs of more.toml must have said; see oracles.py."""
