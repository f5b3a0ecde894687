/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-agent: supervises the engines of a node and relays requests to them. */
#include "agent/daemon/agent.h"
#include "agent/engine/launch.h"

static const char *grpc_addr(const struct config *cfg)
{
	return cfg->agent.listen;
}

static const char *admin_addr(const struct config *cfg)
{
	return cfg->agent.listen_admin;
}

#define LEAVE_TIME (4 * CGN_SEC) /* To take leave of routers and to reap killed processes. */

/* The requests have agent.drain_timeout, then the engines have their engine.stop_grace. */
static cgn_nsec drain_timeout(const struct config *cfg)
{
	cgn_nsec grace = 0;
	for (size_t i = 0; i < cfg->n_engines; i++)
		if (cfg->engines[i].managed && cfg->engines[i].stop_grace > grace)
			grace = cfg->engines[i].stop_grace;
	return cfg->agent.drain_timeout + grace + LEAVE_TIME;
}

static const char kinds[] = "kind of the engine:"
#define ENGINE(id, name) " " #name
#include "policy/config/engine_kinds.def"
#undef ENGINE
	;

static const struct svc_flag flags[] = {
	{"listen", "agent.listen", "ADDR", "gRPC address for routers"},
	{"admin", "agent.listen_admin", "ADDR", "address of metrics and health"},
	{"node-id", "agent.node_id", "NAME", "name of this node"},
	{"router", "cluster.router", "ADDR", "router to register with (state_backend embedded)"},
	{"engine", "engine.url", "URL", "the engine's base URL"},
	{"engine-kind", "engine.kind", "KIND", kinds},
};

static const struct svc_admin_route routes[] = {
#define DOCUMENT SVC_DOCUMENT
#include "agent/daemon/documents.def"
#undef DOCUMENT
};

static const struct metric_row metrics[] = {
#define METRIC METRIC_ROW
#include "agent/metrics.def"
#undef METRIC
};

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], CLOCKHOLD_ARG) == 0)
		return clockhold_main(argc, argv);
	static const struct svc_program program = {
		.name = "cgn-agent",
		.summary =
			"supervises the engines of a node, relays requests to them, feeds load and KV residency to routers",
		.examples =
			"  cgn-agent --config /etc/cognitora/cognitora.toml\n"
			"  cgn-agent --router 127.0.0.1:9090 --engine http://127.0.0.1:8000 --engine-kind openai_compat\n"
			"  cgn-agent --config agent.toml --print-argv\n",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.metrics = metrics,
		.n_metrics = CGN_COUNT(metrics),
		.admin = {"agent.listen_admin", admin_addr},
		.grpc = {"agent.listen", grpc_addr},
		.drain_timeout = drain_timeout,
		.routes = routes,
		.n_routes = CGN_COUNT(routes),
		.start = agent_start,
		.check = agent_check,
		.print = {"print-argv",
			"print the command lines, environment and files of the managed engines as JSON, and exit",
			engine_print_argv},
		.reload = agent_reload,
		.drain = agent_drain,
		.ready = agent_admin_ready,
		.stop = agent_stop,
	};
	return svc_main(&program, argc, argv);
}
