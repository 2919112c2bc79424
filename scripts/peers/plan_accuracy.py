#!/usr/bin/env python3
"""How far `ashlar plan simulate` is from real steps: measures layouts of small models, simulates them on this machine's
profile, and prints every error.  Needs nothing but Python's own library and the program.

  plan_accuracy.py --out DIR [--ashlar BIN] [--models llama,zaya1,moe] [--ranks 2,4] [--engine thread|mpi] [--rounds 3]
                   [--keys "data.sequence_length=64"]

What it does, in this order; a second start with the same DIR goes on where the first one stopped:
  1. the profile: collectives on 2 and 4 ranks, wake-ups, memory (unless DIR/machine.toml exists)
  2. a table of kernels of each model and number of ranks, at the shapes of its layouts, nothing sent
  3. every layout, in `rounds` rounds in a random order; before each run it waits until nobody else computes, and a run
     during which others took more than 3 % of a core is repeated, at most five times
  4. every layout simulated; errors are of the median step over all rounds.  Layouts whose rounds differ by more than
     5 % are listed and not scored.
"""
import argparse, json, os, random, shutil, statistics, subprocess, sys, time

median = statistics.median
TWO = {  # of every model
    "zero0": ["train.micro_batch=2", "parallel.zero=0"],
    "zero1": ["train.micro_batch=2", "parallel.zero=1"],
    "zero2": ["train.micro_batch=1", "parallel.zero=2"],
    "zero2 buckets": ["train.micro_batch=1", "parallel.zero=2", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=4194304"],
    "zero3": ["train.micro_batch=2", "parallel.zero=3"],
    "tp": ["train.micro_batch=4", "parallel.tp=2"],
    "tp sp": ["train.micro_batch=2", "parallel.tp=2", "parallel.sequence_parallel=true"],
    "cp": ["train.micro_batch=4", "parallel.cp=2"],
    "cp ring": ["train.micro_batch=4", "parallel.cp=2", "parallel.cp_exchange=ring"],
    "cp heads": ["train.micro_batch=4", "parallel.cp=2", "parallel.cp_exchange=all_to_all"],
    "tsp": ["train.micro_batch=4", "parallel.tsp=2"],
    "pp": ["train.micro_batch=1", "parallel.pp=2"],
    "pp gpipe": ["train.micro_batch=1", "parallel.pp=2", "parallel.schedule=gpipe"],
    "pp zb": ["train.micro_batch=1", "parallel.pp=2", "parallel.schedule=zb"],
    "pp virtual": ["train.micro_batch=1", "parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2"],
    "ep": ["train.micro_batch=2", "parallel.ep=2"],
}
FOUR = {
    "zero0": ["train.micro_batch=1", "parallel.zero=0"],
    "zero1": ["train.micro_batch=1", "parallel.zero=1"],
    "zero3": ["train.micro_batch=1", "parallel.zero=3"],
    "tp x dp": ["train.micro_batch=2", "parallel.tp=2"],
    "cp x dp": ["train.micro_batch=2", "parallel.cp=2"],
    "tsp x dp": ["train.micro_batch=2", "parallel.tsp=2"],
    "pp x dp": ["train.micro_batch=1", "parallel.pp=2"],
    "pp x tp": ["train.micro_batch=1", "parallel.pp=2", "parallel.tp=2"],
    "pp": ["train.micro_batch=1", "parallel.pp=4"],
    "ep x dp": ["train.micro_batch=1", "parallel.ep=2"],
}
LAYOUTS = {2: TWO, 4: FOUR}
RECIPES = {"llama": "llama-nano", "zaya1": "zaya1-nano", "moe": "moe-nano", "hybrid": "hybrid-nano"}


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode not in (0, 3, 4, 7):  # a verdict on the machine, or disturbed: the output says so
        sys.exit(f"plan_accuracy: {' '.join(command)}: code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def busy():
    """Seconds of all processors that were not idle, and those of this program's children that ended."""
    fields = [float(x) for x in open("/proc/stat").readline().split()[1:9]]
    times = os.times()
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), times.children_user + times.children_system


def wait_for_calm():
    while True:
        before = busy()[0]
        time.sleep(1)
        if busy()[0] - before < 0.06:
            return


def undisturbed(action):
    """The result of an action during which others took at most 3 % of a core, and what they took."""
    for _ in range(6):
        wait_for_calm()
        before, start = busy(), time.time()
        result = action()
        after = busy()
        foreign = ((after[0] - before[0]) - (after[1] - before[1])) / (time.time() - start)
        if foreign < 0.03:
            break
    return result, foreign


class Campaign:
    def __init__(self, options):
        self.o, self.out = options, options.out
        os.makedirs(self.out, exist_ok=True)
        self.commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()

    def started(self, ranks, *arguments):
        if self.o.engine == "mpi":
            return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), self.o.ashlar,
                    *arguments]
        return [self.o.ashlar, *arguments, "--ranks", str(ranks)]

    def recipe(self, model):
        """The arguments that name it, with the keys that all layouts share."""
        return [f"recipes/{RECIPES[model]}.toml", *self.o.keys]

    def layouts(self, model, ranks):
        """Those that the program takes."""
        path = f"{self.out}/layouts-{model}-{ranks}.json"
        if not os.path.exists(path):
            legal = {}
            for name, keys in LAYOUTS[ranks].items():
                done = subprocess.run([self.o.ashlar, "plan", "dry-run", *self.recipe(model), "--ranks", str(ranks), "--json", *keys],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                if done.returncode == 0 and not (name.startswith("ep") and model in ("llama", "hybrid")):
                    legal[name] = keys
                else:
                    print(f"  {model} on {ranks}: {name} is not a layout of it: {done.stderr.strip()[-150:]}", flush=True)
            json.dump(legal, open(path, "w"))
        return json.load(open(path))

    def machine(self):
        """The profile without kernels."""
        path = f"{self.out}/machine-{self.o.engine}.toml"
        if not os.path.exists(path):
            profile = ["--profile", path + ".new"]
            for ranks in self.o.ranks:
                print(f"collectives on {ranks} ranks", flush=True)
                undisturbed(lambda: run(self.started(ranks, "bench", "collectives", "-b", "64", "-e", "64M", "-f", "4", *profile)))
                undisturbed(lambda: run(self.started(ranks, "bench", "p2p", *profile)))
            undisturbed(lambda: run(self.started(self.o.ranks[0], "bench", "launch", *profile)))
            undisturbed(lambda: run(self.started(self.o.ranks[0], "bench", "stream", "--quick", *profile)))
            os.rename(path + ".new", path)
        return path

    def table(self, model, ranks):
        path = f"{self.out}/machine-{self.o.engine}-{model}-{ranks}.toml"
        if not os.path.exists(path):
            print(f"kernels of {model} on {ranks} ranks", flush=True)
            shutil.copy(self.machine(), path + ".new")
            flags = [x for keys in self.layouts(model, ranks).values() for x in ("--layout", " ".join(keys))]
            rounds = ["--rounds", str(self.o.table_rounds)] if self.o.table_rounds > 1 else []
            _, foreign = undisturbed(lambda: run(self.started(ranks, "bench", "kernels", *self.recipe(model), "--steps", "3",
                                                              *rounds, *flags, "--profile", path + ".new")))
            print(f"  others took {100 * foreign:.1f} % of a core", flush=True)
            os.rename(path + ".new", path)
        return path

    def measure(self):
        jobs = [(r, m, n, name) for r in range(self.o.rounds) for m in self.o.models for n in self.o.ranks for name in self.layouts(m, n)]
        for number in range(self.o.rounds):
            these = [j for j in jobs if j[0] == number]
            random.Random(number).shuffle(these)
            for _, model, ranks, name in these:
                path = f"{self.out}/{self.o.engine}-{model}-{ranks}-{name.replace(' ', '_')}-{number}.json"
                if os.path.exists(path):
                    continue
                keys = self.layouts(model, ranks)[name]
                text, foreign = undisturbed(lambda: run(self.started(ranks, "bench", "ranks", *self.recipe(model), "--json",
                                                                     "--steps", str(self.o.steps), *keys)))
                answer = json.loads(text.strip().splitlines()[-1])
                answer["foreign"] = foreign
                json.dump(answer, open(path, "w"))

    def simulated(self, model, ranks, name, machine):
        return json.loads(run([self.o.ashlar, "plan", "simulate", *self.recipe(model), "--ranks", str(ranks), "--machine", machine,
                               "--json", "-", *self.layouts(model, ranks)[name]]))

    def score(self):
        print(f"{'model':7} {'ranks':>5} {'layout':14} {'measured':>10} {'rounds':>8} {'simulated':>10} {'error':>8}  exact compute exposed waiting")
        for ranks in self.o.ranks:
            errors, left_out, rank_of = [], [], {}
            for model in self.o.models:
                rows = []
                for name in self.layouts(model, ranks):
                    paths = [f"{self.out}/{self.o.engine}-{model}-{ranks}-{name.replace(' ', '_')}-{r}.json" for r in range(self.o.rounds)]
                    runs = [json.load(open(p)) for p in paths if os.path.exists(p)]
                    if not runs:
                        continue
                    steps = [r["step"]["median_s"] for r in runs]
                    real, spread = median(steps), max(steps) / min(steps) - 1
                    step = self.simulated(model, ranks, name, self.o.machine or self.table(model, ranks))
                    error = step["step_s"] / real - 1
                    foreign = max(r["foreign"] for r in runs)
                    good = len(runs) == self.o.rounds and spread <= 0.05 and foreign < 0.03
                    (errors if good else left_out).append(error)
                    rows.append((real, step["step_s"], name))
                    mean = lambda key: 1e3 * statistics.mean(r[key] for r in step["ranks"])
                    print(f"{model:7} {ranks:5} {name:14} {1e3 * real:7.1f} ms {100 * spread:6.1f} % {1e3 * step['step_s']:7.1f} ms "
                          f"{100 * error:+6.1f} %  {100 * step['kernel_shares']['exact']:4.0f}% {mean('compute_s'):7.1f} {mean('exposed_s'):7.1f} {mean('waiting_s'):7.1f}"
                          f"{'' if good else '   not scored'}", flush=True)
                if rows:
                    chosen = min(rows, key=lambda r: r[1])
                    best = min(rows)
                    print(f"{model:7} {ranks:5} chosen: {chosen[2]}, {100 * (chosen[0] / best[0] - 1):.1f} % behind the best measured, {best[2]}")
            if errors:
                absolute = [abs(e) for e in errors]
                print(f"{ranks} ranks: {len(errors)} scored: mean {100 * statistics.mean(absolute):.1f} %, largest {100 * max(absolute):.1f} %, "
                      f"signed mean {100 * statistics.mean(errors):+.1f} %; {len(left_out)} not scored"
                      + (f" (mean {100 * statistics.mean(map(abs, left_out)):.1f} %)" if left_out else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--ashlar", default="build/release/ashlar")
    parser.add_argument("--models", default="llama,zaya1,moe")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--engine", default="thread", choices=["thread", "mpi"])
    parser.add_argument("--keys", default="", help="of the recipe, for all layouts: shorter steps on a slow machine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table-rounds", type=int, default=3, help="of the tables of kernels")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--machine", default="", help="score with this profile instead of what was measured")
    parser.add_argument("--score", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.models, options.ranks = options.models.split(","), [int(x) for x in options.ranks.split(",")]
    options.keys = options.keys.split()
    options.ashlar = os.path.abspath(options.ashlar)
    campaign = Campaign(options)
    if not options.score:
        for model in options.models:
            for ranks in options.ranks:
                campaign.table(model, ranks)
        campaign.measure()
    campaign.score()


main()
