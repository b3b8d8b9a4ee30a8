"""`python -m telegrad`: the command, where its script is not on the path."""

from __future__ import annotations

import sys

from telegrad.launch import cli

sys.exit(cli.main())
