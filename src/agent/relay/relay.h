/* SPDX-License-Identifier: Apache-2.0 */
/* relay: one request to one engine, and the engine's bytes back as they arrive (Agent.Generate). */
#pragma once
#include "agent/engine/engine.h"
#include "io/wire/grpc/grpc.h"
#include "joint/report/tracing/tracing.h"
#include "policy/node/proto/proto.h"
#include "policy/who/share/share.h"

struct relays_ops {
	/* Refuse all requests while the node drains or has too many. */
	CGN_RC (*admit)(void *user, struct cgn_err *err);
	/* Choose an engine for the request; NULL and why when none takes it. */
	struct engine *(*pick)(void *user, const struct proto_facts *facts, struct cgn_err *err);
	/* Return true if a request may wait for the engine, which does not take requests now. */
	bool (*may_wait)(void *user, const struct engine *e, char *why, size_t cap,
		struct engine_refusal *no);
	/* The relayed load changed. */
	void (*load_changed)(void *user);
	/* A request has left its engine and the share. */
	void (*request_done)(void *user);
};
/* All requests that the agent relays. */
struct relays {
	struct cgn_loop *loop;
	struct share share; /* Requests relayed now, in total and for each router */
	uint64_t requests_total;
	struct tracing *tracing;    /* NULL: off */
	struct grpc_budget *budget; /* For the requests' bodies (agent.max_inflight_body) */
	const struct relays_ops *ops;
	void *user;
};
/* Take a call of Agent.Generate. */
void relay_open(struct relays *all, struct grpc_call *c);
/* Return how many of the engine's requests are for the model: those that wait, and those that are answered. */
uint32_t relay_count(const struct engine *e, struct cgn_str model);
/* End an engine's requests with the sentence; the engine will not end them. */
void relay_end_all(struct engine *e, const char *sentence);
