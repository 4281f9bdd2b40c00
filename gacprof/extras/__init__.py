"""What stands on the chain and no part of it needs: lint, compress, export, fleet, virtual."""
