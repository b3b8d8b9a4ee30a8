"""Memory that the ranks of one host share: who has it, and how they meet in it."""
