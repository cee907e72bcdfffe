#!/usr/bin/env python
"""`headless-trainer items` from a checkout: python run_items.py --help"""

from headless_trainer.cli.items import main

if __name__ == "__main__":
    main()
