#!/usr/bin/env python
"""`headless-trainer report` from a checkout: python run_report.py --help"""

from headless_trainer.cli.make_report import main

if __name__ == "__main__":
    main()
