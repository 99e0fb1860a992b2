"""Run one engine on one workload, or a sweep of them: `python run.py --help`."""

from interlock.driver.cli import main

if __name__ == "__main__":
    main()
