#!/usr/bin/env python
"""`headless-trainer compare-steps` from a checkout: python run_compare_steps.py --help"""

from headless_trainer.cli.compare_steps import main

if __name__ == "__main__":
    main()
