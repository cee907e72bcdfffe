#!/usr/bin/env python
"""`headless-trainer pretrain` from a checkout: python run_pretrain.py --help"""

from headless_trainer.cli.pretrain import main

if __name__ == "__main__":
    main()
