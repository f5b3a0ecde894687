/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/gate.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include <sys/mman.h>

#include "base/json/json.h"
#include "ctl/rack/fleet.h"
#include "ctl/run.h"
#include "io/os/loop/loop.h"

#define ANSWER_LIMIT ((size_t)16 << 20)
#define LOOK_EVERY   500000 /* Microseconds. */

/* A cluster verb of this program, asked of one router. */
struct ask {
	const char *verb, *node, *timeout; /* |node| may be NULL. */
	struct cgn_buf *out;               /* NULL: not wanted. */
};

static bool printed_take(int fd, struct cgn_buf *out)
{
	off_t n = lseek(fd, 0, SEEK_END);
	char *room = n > 0 && (size_t)n < ANSWER_LIMIT ? cgn_buf_room(out, (size_t)n) : NULL;
	if (room == NULL || pread(fd, room, (size_t)n, 0) != n)
		return false;
	cgn_buf_grew(out, (size_t)n);
	return true;
}

static bool router_ask(const struct rack_gate *g, const struct rack_host *router, const struct ask *q)
{
	char self[PATH_MAX], ca[PATH_MAX], cert[PATH_MAX], key[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf address = {0};
	rack_endpoint(router, "router", "listen_grpc", "9090", &address);
	(void)snprintf(ca, sizeof ca, "%s/ca.pem", g->pki);
	(void)snprintf(cert, sizeof cert, "%s/admin.pem", g->pki);
	(void)snprintf(key, sizeof key, "%s/admin.key", g->pki);
	if (!cgn_ok(ctl_run_self(self, NULL)))
		return false;
	const char *const argv[] = {self, "cluster", q->verb, "-o", "json", "--context", "", "--router",
		cgn_buf_z(&address), "--ca", ca, "--cert", cert, "--key", key, "--timeout", q->timeout,
		q->node, NULL};
	int out = memfd_create("answer", MFD_CLOEXEC), err = memfd_create("error", MFD_CLOEXEC);
	int pid = out >= 0 && err >= 0 ? fleet_start((char *const *)(uintptr_t)argv, STDIN_FILENO, out, err)
				       : -1;
	bool ok = pid > 0 && fleet_wait(pid) == 0 && (q->out == NULL || printed_take(out, q->out));
	if (out >= 0)
		(void)close(out);
	if (err >= 0)
		(void)close(err);
	return ok;
}

/* Ask the routers one after another until one answers. */
static bool routers_ask(const struct rack_gate *g, const struct ask *q)
{
	const struct rack_host *router;
	for (size_t i = 0; (router = rack_nth(g->rack, RACK_ROUTER, i)) != NULL; i++)
		if (router_ask(g, router, q))
			return true;
	return false;
}

/* Write the state of the node, "" if it is not known; false: no router answered. */
static bool node_state(const struct rack_gate *g, const char *node, char *out, size_t cap)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena arena;
	struct json_val doc, row;
	struct cgn_err err;
	cgn_arena_init(&arena, ANSWER_LIMIT);
	out[0] = '\0';
	if (!routers_ask(g, &(struct ask){.verb = "nodes", .timeout = "5s", .out = &text}) ||
		!cgn_ok(json_parse(cgn_str_trim(cgn_buf_view(&text)), &doc, NULL, &err)))
		return false;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &row);)
		if (cgn_str_is(json_get_str(row, "node", &arena), node))
			(void)cgn_str_copyz(out, cap, json_get_str(row, "state", &arena));
	return true;
}

CGN_RC rack_gate_close(const struct rack_gate *g, const char *node, struct rack_gate_node *out,
	struct cgn_err *err)
{
	char state[64];
	*out = (struct rack_gate_node){.known = node_state(g, node, state, sizeof state)};
	if (!out->known)
		printf("%s: no router answers here, so it is not drained; its agent waits at most agent.drain_timeout\n",
			node);
	out->known = out->known && state[0] != '\0';
	out->ready = strcmp(state, "ready") == 0;
	if (!out->ready)
		return CGN_OK;
	if (routers_ask(g, &(struct ask){.verb = "drain", .node = node, .timeout = g->drain_timeout})) {
		out->drained = true;
		return CGN_OK;
	}
	(void)routers_ask(g, &(struct ask){.verb = "uncordon", .node = node, .timeout = "10s"});
	return CGN_FAIL(err, DEADLINE,
		"host %s: requests are in flight there after %s (--drain-timeout); it was not restarted, and serves on",
		node, g->drain_timeout);
}

CGN_RC rack_gate_open(const struct rack_gate *g, const char *node, const struct rack_gate_node *was,
	struct cgn_err *err)
{
	char state[64];
	cgn_nsec end = cgn_clock_now() + g->ready_timeout;
	if (was->drained &&
		!routers_ask(g, &(struct ask){.verb = "uncordon", .node = node, .timeout = "10s"}))
		return CGN_FAIL(err, UNAVAILABLE,
			"host %s: no router lifts its cordon: cgn-ctl cluster uncordon %s", node, node);
	while (was->ready) {
		if (node_state(g, node, state, sizeof state) && strcmp(state, "ready") == 0)
			return CGN_OK;
		if (cgn_clock_now() > end)
			return CGN_FAIL(err, DEADLINE,
				"host %s was ready before its agent restarted, and is \"%s\" now (--ready-timeout); cgn-ctl cluster nodes says why",
				node, state);
		(void)usleep(LOOK_EVERY);
	}
	return CGN_OK;
}
