/* SPDX-License-Identifier: Apache-2.0 */
/* agent: one per node. Supervises the node's engines, relays requests to them, and reports the node to routers.
 * One loop, its thread. */
/* daemon, the room: supervises the engines of one node, relays requests to them, and reports the node to routers. */
#pragma once
#include "agent/clocks/clocks.h"
#include "agent/daemon/energy.h"
#include "agent/daemon/store.h"
#include "agent/engine/engine.h"
#include "agent/gpu/gpu.h"
#include "agent/power/power.h"
#include "agent/relay/relay.h"
#include "agent/swap/swap.h"
#include "agent/wanted/wanted.h"
#include "agent/watch/watch.h"
#include "io/os/proc/proc.h"
#include "joint/cluster/state/state.h"
#include "joint/daemon/svc/svc.h"

#define AGENT_TAG 0xa9e17002U

/* The end of the node, from its drain on. */
struct agent_drain {
	bool on;                       /* No new requests */
	bool direct_over;              /* Routers go straight to the engine no more, or had their time */
	bool leaving;                  /* The last request has ended: routers forget the node, engines stop */
	bool left;                     /* Routers have forgotten the node */
	struct cgn_timer timer;        /* Open requests are cut when it fires */
	struct cgn_timer direct_timer; /* The requests that routers had sent by then are reported */
};

struct agent {
	uint32_t tag;
	struct svc *svc;
	struct cgn_loop *loop;
	struct telemetry *telemetry; /* Borrowed from |svc| */
	struct engine_host engine_host;
	struct engine *engines;
	size_t n_engines;
	struct grpc_server *grpc;
	struct tls_ctx *tls; /* The gRPC server's; NULL without TLS */
	struct state_announce *announce;

	char node_id[PROTO_MAX_ID + 1], address[300];
	char engine_dir[420]; /* Folder of managed engines' files */
	int role;             /* Numbered as Cognitora__V1__Role */
	uint64_t started_unix_ms;
	uint32_t max_inflight;
	struct grpc_budget budget; /* For requests' bodies */
	Cognitora__V1__Node *node; /* As last announced */
	struct cgn_arena scratch;

	struct relays relays;
	struct watch watch;
	struct wanted wanted; /* Models that operators want */
	struct swap swap;     /* Engines that are loaded on demand */
	struct node_store store;
	struct holdings *holdings; /* Blocks of all engines together */
	struct powersrc power;
	struct node_power *node_power; /* NULL: not yet */
	struct gpus gpus;
	struct node_energy energy;
	struct node_clocks clocks;
	struct cgn_timer power_timer;
	unsigned power_turn;

	struct agent_drain drain;
	int direct;                 /* agent.direct */
	bool direct_told;           /* Routers know the engine's address */
	char host_id[PROC_HOST_ID]; /* Empty: not known */
	bool insecure;              /* Everybody who reaches agent.listen may do everything there. */
};

/* ---- the program, as joint/daemon/svc runs it ---- */
CGN_RC agent_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err);
void agent_check(const struct config *cfg, struct svc_problems *out);
void agent_reload(void *state, const struct config *cfg);
void agent_drain(void *state);
void agent_stop(void **take);

/* ---- node.c: the node as routers see it ---- */
/* Readiness, models, size or draining may have changed: announce the node if its description differs. */
void agent_changed(struct agent *a);
bool agent_is_ready(const struct agent *a); /* At least one engine is ready */
/* Fill in the node's load: in total, and the share of |router|. */
void agent_load(const struct agent *a, uint64_t router, Cognitora__V1__Load *out);
struct energy_load agent_energy_load(const struct agent *a); /* The load, as the energy is divided by it. */
/* Choose the engine with this name; without a name, the ready engine with the fewest requests that serves the
 * model. NULL, and why in |err|, when there is none. */
struct engine *agent_pick(struct agent *a, struct cgn_str name, struct cgn_str model, struct cgn_err *err);

/* ---- admin.c: the admin port ---- */
#define DOCUMENT(fill, path, action, Type, type, select, help) \
	bool fill(void *agent, struct pb_tree *t, void *message, struct svc_admin_reply *r);
#include "agent/daemon/documents.def"
#undef DOCUMENT
bool agent_admin_ready(void *agent, struct cgn_buf *why); /* For /readyz */
