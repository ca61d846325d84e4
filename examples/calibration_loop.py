"""Predict, measure, calibrate, predict again.

The measurements stand in a table of runs. `calibrate_from` also takes results of ``vllm bench`` and folders of plans.
"""

from pathlib import Path

from planner import Load, Serving, calibrate_from

MODEL, GPU, VERSION = "meta-llama/Llama-3.1-8B-Instruct", "mi300x", "0.11.0"
RUNS = """\
run_id,bench,gpu,model,engine_version,input_len,output_len,arrival,max_concurrency,num_prompts,output_throughput,mean_ttft_ms,mean_tpot_ms
morning,serve,mi300x,meta-llama/Llama-3.1-8B-Instruct,0.11.0,1024,256,closed-loop,4,20,465,175.3,8.23
noon,serve,mi300x,meta-llama/Llama-3.1-8B-Instruct,0.11.0,1024,256,closed-loop,16,80,1388,493.9,10.18
"""
load = Load.closed_loop(64, input_len=1024, output_len=256, num_prompts=320)  # not measured yet


def show(when: str, calibration: str) -> None:
    """Print the prediction of the load with a calibration."""
    serving = Serving(MODEL, gpu=GPU, engine_version=VERSION, calibration=calibration)
    result = serving.predict(load).result
    rate, low, high = (result[f"output_throughput{end}"] for end in ("", "_lo", "_hi"))
    print(f"{when}: {rate:.0f} output tokens/s, 90 % interval {low:.0f} to {high:.0f}")


show("before", "none")
Path("own.csv").write_text(RUNS)
answer = calibrate_from("own.csv", output="machine.toml")
if answer.ok:  # else the runs taught nothing, and no file was written
    show("after", "machine.toml")
