"""Opens trace files in Perfetto's trace processor and prints what it finds in them, as JSON.

Exit code 77 says that something is lacking here, and what.  The package takes its program trace_processor_shell from
the net, unless ASHLAR_TRACE_PROCESSOR names one.
"""
import json
import os
import sys

try:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
except ImportError:
    print("python3 has no package perfetto (PyPI)")
    sys.exit(77)

found = []
for path in sys.argv[1:]:
    try:
        config = TraceProcessorConfig(bin_path=os.environ.get("ASHLAR_TRACE_PROCESSOR"))
        processor = TraceProcessor(trace=path, config=config)
    except Exception as error:  # of many kinds: no net, no program for this machine
        print(f"the package perfetto does not start its trace_processor_shell: {str(error).splitlines()[0]}")
        sys.exit(77)

    def value(query):
        return next(iter(processor.query(query))).value

    found.append({
        "process": value("select name as value from process where name like 'rank %'"),
        "threads": [row.name for row in processor.query("select name from thread where name is not null order by tid")],
        "slices": {row.category: row.value for row in processor.query(
            "select ifnull(category, '') as category, count(*) as value from slice group by category")},
        "flop": value("select sum(extract_arg(arg_set_id, 'args.flop')) as value from slice"),
        "flows": value("select count(*) as value from flow"),
        "errors": value("select ifnull(sum(value), 0) as value from stats where severity = 'error'"),
    })
    processor.close()
print(json.dumps(found))
