#!/usr/bin/env python
"""`headless-trainer glue` from a checkout: python run_glue.py --help"""

from headless_trainer.cli.glue import main

if __name__ == "__main__":
    main()
