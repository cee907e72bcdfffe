#!/usr/bin/env python
"""`headless-trainer lm-head` from a checkout: python run_lm_head.py --help"""

from headless_trainer.cli.make_lm_head import main

if __name__ == "__main__":
    main()
