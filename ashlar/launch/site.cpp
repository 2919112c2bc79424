#include "ashlar/launch/site.h"

#include "ashlar/launch/node_agent.h"

namespace ashlar::launch {

int run_on_site(const LaunchPlan& plan, const FleetWorld& world, const LaunchSite& site,
                FileSystem& files, Log& log) {
  const auto lead = [&](int64_t epoch, int num_before) {
    FleetSpec fleet{.epoch = epoch,
                    .num_before = num_before,
                    .num_nodes = world.num_nodes,
                    .ranks_per_node = world.ranks_per_node,
                    .directory = join(plan.run_directory, "launch"),
                    .job = site.job,
                    .kind = site.kind,
                    .starter = site.starter,
                    .variables = site.variables,
                    .startable = site.startable,
                    .limits = plan.limits};
    if (world.layouts) fleet.layouts = world.layouts->id();
    if (world.interface_name != "none") fleet.interface_name = world.interface_name;
    Leader leader(fleet, files, log);
    LaunchPlan led = plan;
    led.fleet = &leader;
    const LaunchResult result = run_launch(led, files, log);
    if (result.resigned) return kResignedCode;
    if (!result.reason.empty()) log.warn("{}", result.reason);
    if (site.at_end) site.at_end(leader, result.exit_code);
    return result.exit_code;
  };
  AgentSpec agent{.run_directory = plan.run_directory,
                  .node = site.node,
                  .number = site.number,
                  .job = site.job,
                  .hang_s = plan.limits.hang_s,
                  .program = world.program,
                  .ranks_per_node = world.ranks_per_node,
                  .lead = lead};
  if (world.layouts)
    agent.aside = [&] {
      Log silent([](std::string_view) {});
      find_layouts(*world.layouts, files, join(plan.run_directory, "launch/layouts.json"), silent);
    };
  return run_agent(agent, files, log);
}

}  // namespace ashlar::launch
