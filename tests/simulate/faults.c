/* SPDX-License-Identifier: Apache-2.0 */
/* faults: kills, stalls, cuts and jumps of clocks while clients ask. */
#include <signal.h>

#include "base/core/err.h"
#include "scenario.h"

static struct node *node_any(void)
{
	return &cluster.node[world_draw(cluster.n_nodes)];
}

/* Wait for a moment within the window. */
static void moment_wait(void)
{
	world_sleep(world_draw(PLAN(window_ms) * WORLD_MS));
}

static uint64_t while_drawn(void)
{
	return world_chance(3) ? world_draw(40 * WORLD_SEC) : world_draw(3 * WORLD_SEC);
}

static void part_stop(struct part *p)
{
	struct world_proc *proc = p->proc;
	if (proc == NULL || !world_alive(proc))
		return;
	part_harm(p);
	world_pause(proc, true);
	world_sleep(while_drawn());
	world_pause(proc, false);
	part_harm(p);
}

static void kill_router(void)
{
	part_kill(&cluster.router);
}

static void roll_router(void)
{
	if (cluster.router.proc == NULL)
		return;
	part_harm(&cluster.router);
	cluster.router.ends = true;
	world_signal(cluster.router.proc, SIGTERM);
}

static void reload_router(void)
{
	if (cluster.router.proc != NULL && world_alive(cluster.router.proc))
		world_signal(cluster.router.proc, SIGHUP);
}

static void kill_agent(void)
{
	part_kill(&node_any()->agent);
}

static void kill_engine(void)
{
	part_kill(&node_any()->engine);
}

static void kill_hook(void)
{
	if (PLAN(hook) > 0)
		part_kill(&cluster.hook);
}

static void stop_router(void)
{
	part_stop(&cluster.router);
}

static void stop_agent(void)
{
	part_stop(&node_any()->agent);
}

static void stop_engine(void)
{
	part_stop(&node_any()->engine);
}

static void cut_node(void)
{
	struct node *n = node_any();
	cluster.last_harm = world_now();
	world_tell("%s and the router cannot reach each other", n->name);
	world_cut(n->host, cluster.gate, true);
	world_sleep(while_drawn());
	world_cut(n->host, cluster.gate, false);
	world_tell("%s and the router reach each other again", n->name);
	cluster.last_harm = world_now();
}

static void clock_jump(void)
{
	int64_t ns = (int64_t)(world_draw(80) * 3600 * WORLD_SEC) - (int64_t)(40 * 3600 * WORLD_SEC);
	struct world_host *h = world_chance(2) ? cluster.gate : node_any()->host;
	world_tell("a wall clock jumps by %lld s", (long long)(ns / (int64_t)WORLD_SEC));
	world_wall_jump(h, ns);
}

/* ---- scarcity ---- */

/* The router and the agents lack descriptors or memory for a while. */
static void lack_something(uint64_t files, uint64_t memory)
{
	uint64_t until = world_now() + while_drawn();
	world_tell("descriptors and memory are scarce");
	while (world_now() < until && !cluster.over) {
		struct part *parts[1 + NODES_MOST] = {&cluster.router};
		for (size_t i = 0; i < cluster.n_nodes; i++)
			parts[1 + i] = &cluster.node[i].agent;
		for (size_t i = 0; i <= cluster.n_nodes; i++)
			if (parts[i]->proc != NULL && world_alive(parts[i]->proc) &&
				world_age(parts[i]->proc) >
					2 * WORLD_SEC) /* Without them no program starts */
				world_scarce(parts[i]->proc, files, memory);
		part_harm(&cluster.router); /* A connection without memory is cut */
		world_sleep(10 * WORLD_MS);
	}
	for (size_t i = 0; i < cluster.n_nodes; i++)
		if (cluster.node[i].agent.proc != NULL)
			world_scarce(cluster.node[i].agent.proc, 0, 0);
	if (cluster.router.proc != NULL)
		world_scarce(cluster.router.proc, 0, 0);
	world_tell("there is enough of all again");
}

static void lack_files(void)
{
	lack_something(PLAN(no_files), 0);
}

static void lack_memory(void)
{
	lack_something(0, PLAN(no_memory));
}

struct fault {
	void (*run)(void);
	uint64_t times;
};

static void fault_run(void *arg)
{
	struct fault *f = arg;
	for (uint64_t i = 0; i < f->times; i++) {
		moment_wait();
		if (!cluster.over)
			f->run();
	}
}

void faults_run(void)
{
	static struct fault faults[13];
	const struct fault all[] = {{kill_router, PLAN(kill_router)}, {roll_router, PLAN(roll_router)},
		{reload_router, PLAN(reload)}, {kill_agent, PLAN(kill_agent)},
		{kill_engine, PLAN(kill_engine)}, {stop_router, PLAN(stop_router)},
		{stop_agent, PLAN(stop_agent)}, {stop_engine, PLAN(stop_engine)}, {cut_node, PLAN(cut)},
		{clock_jump, PLAN(clock)}, {kill_hook, PLAN(kill_hook)}, {lack_files, PLAN(no_files) > 0},
		{lack_memory, PLAN(no_memory) > 0}};
	for (size_t i = 0; i < CGN_COUNT(all); i++) {
		faults[i] = all[i];
		if (all[i].times > 0)
			world_spawn(fault_run, &faults[i]);
	}
}
