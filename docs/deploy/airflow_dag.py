"""A night as an Airflow DAG.

Promoted (0) and kept (10) are success, and the task returns which. Refused (20, 30) fails without another try, since a
person is needed. Anything else (40, 130, 143, killed) is tried again: the night goes on from where finished stages end.
"""

import signal
import subprocess
from datetime import datetime, timedelta

try:
    from airflow.sdk import dag, task
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # Airflow 2
    from airflow.decorators import dag, task
    from airflow.exceptions import AirflowException, AirflowFailException

HOME = "/srv/gigabatch"
COMMAND = [f"{HOME}/.venv/bin/gigabatch", "nightly", "--config", "conf/flights.yaml"]
SUCCESS = {0: "promoted", 10: "kept"}
PERSON = {20: "data refused", 30: "drift refused"}


def run_night(command=COMMAND, home=HOME):
    """Run the night and turn its exit code into a state of the task."""
    process = subprocess.Popen(command, cwd=home)
    try:
        code = process.wait()
    finally:  # the task was stopped, or ran into its timeout: so is the night, which writes its line first
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
    if code in SUCCESS:
        return SUCCESS[code]
    if code in PERSON:
        raise AirflowFailException(f"exit code {code}: {PERSON[code]}; a person is needed (docs/nightly.md)")
    raise AirflowException(f"exit code {code}: failed or stopped; the next try goes on (docs/nightly.md)")


@dag(
    schedule="15 3 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a night takes all files that are there: missed ones are not made up for
    max_active_runs=1,
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=15),
        "execution_timeout": timedelta(hours=6),
    },
)
def gigabatch_nightly():
    task(run_night, task_id="night")()


gigabatch_nightly()
