# Reads what `ncu --csv --print-units base` prints, a line for each metric of each launch, and prints a record for each of
# the kernels whose longest launch took longest: at most `most` of them, in that order.  A launch without all four numbers
# does not count.
#
#   awk -v most=5 -f scripts/gpu/counters.awk FILE
BEGIN {
  split("gpu__time_duration.sum dram__bytes.sum sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed " \
        "sm__warps_active.avg.pct_of_peak_sustained_active", metric, " ")
}
!/^"/ { next }
{
  # All fields are quoted, and none holds a quote.
  n = split(substr($0, 2, length($0) - 2), field, "\",\"")
}
field[1] == "ID" {
  for (i = 1; i <= n; ++i) column[field[i]] = i
  next
}
{
  launch = field[column["ID"]]
  value = field[column["Metric Value"]]
  gsub(",", "", value)
  if (value !~ /^[0-9.]+([eE][-+]?[0-9]+)?$/) next
  kernel[launch] = field[column["Kernel Name"]]
  found[launch, field[column["Metric Name"]]] = value + 0
}
END {
  for (launch in kernel) {
    for (i = 1; i <= 4; ++i)
      if (!((launch, metric[i]) in found)) break
    if (i <= 4) continue
    name = kernel[launch]
    if (!(name in longest) || found[launch, metric[1]] > found[longest[name], metric[1]]) longest[name] = launch
  }
  for (rank = 1; rank <= most; ++rank) {
    best = ""
    for (name in longest)
      if (best == "" || found[longest[name], metric[1]] > found[longest[best], metric[1]]) best = name
    if (best == "") exit
    launch = longest[best]
    delete longest[best]
    gsub(/["\\]/, "", best)
    seconds = found[launch, metric[1]] * 1e-9
    printf "{\"name\":\"kernel %d\",\"kernel\":\"%s\",\"us\":%.4g,\"dram_gb\":%.4g,\"dram_gb_s\":%.4g,", rank,
      substr(best, 1, 100), seconds * 1e6, found[launch, metric[2]] * 1e-9, found[launch, metric[2]] * 1e-9 / seconds
    printf "\"tensor_percent\":%.4g,\"occupancy_percent\":%.4g}\n", found[launch, metric[3]], found[launch, metric[4]]
  }
}
