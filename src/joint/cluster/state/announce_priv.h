/* SPDX-License-Identifier: Apache-2.0 */
/* announce, inside: a backend of agents. */
#pragma once
#include "io/os/loop/backoff.h"
#include "joint/cluster/state/state_priv.h"

#define STATE_ANNOUNCE_TAG 0x57a7e002U
struct announce_backend {
	CGN_RC (*open)(struct state_announce *a, const struct config *cfg,
		struct cgn_err *err);           /* sets a->own */
	void (*send)(struct state_announce *a); /* the node is new or changed, or the timer fired */
	void (*leave)(
		struct state_announce *a); /* leads to announce_left; not called before the first update */
	void (*close)(struct state_announce *a); /* frees a->own; also after a failed open */
	CGN_RC (*reload_tls)(struct state_announce *a, struct cgn_err *err); /* NULL: no certificates */
};
extern const struct announce_backend announce_embedded, announce_static, announce_etcd, announce_kubernetes;

struct state_announce {
	uint32_t tag;
	struct state_source source;
	bool changed, leaving; /* |changed|: |node| was not sent yet */
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct announce_backend *backend;
	void *own; /* the backend's */
	const struct state_announce_ops *ops;
	void *user;
	Cognitora__V1__Node *node; /* NULL before the first update */
	struct cgn_hook turn;
	struct cgn_timer timer; /* the next send; when leaving: the deadline */
	struct cgn_backoff backoff;
	char cluster[72];
	void (*left)(void *arg);
	void *left_arg;
};
void announce_ok(struct state_announce *a); /* the registration stands */
/* The registration cannot be renewed: log why, once per outage. */
void announce_trouble(struct state_announce *a, const struct cgn_err *why);
void announce_retry(struct state_announce *a,
	const struct cgn_err *why); /* the same, and send after the backoff */
void announce_left(struct state_announce *a);
