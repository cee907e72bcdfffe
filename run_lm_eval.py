#!/usr/bin/env python
"""`headless-trainer lm-eval` from a checkout: python run_lm_eval.py --help"""

from headless_trainer.cli.lm_eval import main

if __name__ == "__main__":
    main()
