#!/usr/bin/env python
"""`headless-trainer recommend` from a checkout: python run_recommend.py --help"""

from headless_trainer.cli.recommend import main

if __name__ == "__main__":
    main()
