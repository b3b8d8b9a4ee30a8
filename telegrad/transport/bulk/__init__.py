"""Large messages beside the control stream, in chunks on lanes of their own."""
