/* SPDX-License-Identifier: Apache-2.0 */
/* state_demo watch CONFIG             a router's view of membership, one line per event; with the embedded
 *                                     backend, it serves Announce and Leave
 * state_demo announce CONFIG ID ADDR  an agent's registration, until SIGTERM, then it leaves
 * Commands on stdin, one per line: cordon ID | uncordon ID | draining | ready | quit. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <uv.h>

#include "base/pb/pb.h"
#include "io/os/disk/disk.h"
#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/state.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"

struct demo {
	struct cgn_loop *l;
	struct telemetry *telemetry;
	struct config *cfg;
	struct state_watch *watch;
	struct state_announce *announce;
	struct grpc_server *server;
	struct tls_ctx *tls;
	Cognitora__V1__Node node;
	uv_poll_t input;
	char line[512];
	size_t n;
};

static void event_print(const char *what, const char *arg)
{
	(void)printf("%s %s\n", what, arg);
	(void)fflush(stdout);
}

static int demo_die(const struct cgn_err *err)
{
	(void)fprintf(stderr, "state_demo: %s\n", err->msg);
	return cgn_code_exit(err->code);
}

/* ---- router ---- */

static void on_node(void *user, const Cognitora__V1__Node *n)
{
	(void)user;
	(void)printf("node %s %s%s\n", n->id, n->address, n->draining ? " draining" : "");
	(void)fflush(stdout);
}

static void on_gone(void *user, const char *id)
{
	(void)user;
	event_print("gone", id);
}

static void on_cordon(void *user, const char *id, bool on)
{
	(void)user;
	event_print(on ? "cordon" : "uncordon", id);
}

static void on_connected(void *user, bool connected, const char *why)
{
	(void)user;
	event_print(connected ? "connected" : "disconnected", why);
}

static const struct state_watch_ops watch_ops = {on_node, on_gone, on_cordon, on_connected, NULL};

static void cordon_done(void *user, const struct cgn_err *err)
{
	(void)user;
	event_print(cgn_code_name(err->code), err->code == CGN_FINE ? "" : err->msg);
}

static void on_announce(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct demo *d = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__AnnounceRequest *rq = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Cognitora__V1__AnnounceResponse answer = COGNITORA__V1__ANNOUNCE_RESPONSE__INIT;
	struct cgn_err err;
	cgn_rc rc = pb_unpack(&cognitora__v1__announce_request__descriptor,
		(struct cgn_str){(const char *)p, n}, &rq, &err);
	if (cgn_ok(rc))
		rc = state_announce_received(d->watch, rq, &answer.lease_ms, &err);
	pb_pack(&answer, &b);
	if (cgn_ok(rc))
		grpc_send(c, &(struct iovec){b.p, b.n}, 1);
	grpc_finish(c, rc.code, err.msg);
}

static void on_leave(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct demo *d = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__LeaveRequest *rq = NULL;
	struct cgn_err err;
	cgn_rc rc = pb_unpack(&cognitora__v1__leave_request__descriptor, (struct cgn_str){(const char *)p, n},
		&rq, &err);
	if (cgn_ok(rc))
		rc = state_leave_received(d->watch, rq->node_id, &err);
	if (cgn_ok(rc))
		grpc_send(c, NULL, 0);
	grpc_finish(c, rc.code, err.msg);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

static void start_announce(struct grpc_call *c, void *user)
{
	static const struct grpc_call_ops ops = {.on_message = on_announce, .on_close = on_close};
	grpc_call_take(c, &ops, user);
}

static void start_leave(struct grpc_call *c, void *user)
{
	static const struct grpc_call_ops ops = {.on_message = on_leave, .on_close = on_close};
	grpc_call_take(c, &ops, user);
}

static CGN_RC demo_serve(struct demo *d, struct cgn_err *err)
{
	static const struct grpc_method methods[] = {{PROTO_ROUTER_ANNOUNCE, start_announce},
		{PROTO_ROUTER_LEAVE, start_leave}};
	CGN_TRY(state_tls_server(d->cfg, &d->tls, err));
	const struct grpc_server_cfg cfg = {
		.listen = {.addr = d->cfg->router.listen_grpc, .tls = d->tls},
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.health = true,
	};
	return grpc_server_new(d->l, &cfg, d, &d->server, err);
}

static CGN_RC start_watch(struct demo *d, struct cgn_err *err)
{
	CGN_TRY(state_watch_open(d->l, d->cfg, d->telemetry, &watch_ops, d, &d->watch, err));
	return d->cfg->cluster.state_backend == STATE_EMBEDDED ? demo_serve(d, err) : CGN_OK;
}

/* ---- agent ---- */

static const struct state_announce_ops announce_ops = {on_connected};

static CGN_RC start_agent(struct demo *d, char **argv, struct cgn_err *err)
{
	cognitora__v1__node__init(&d->node);
	d->node.id = argv[3];
	d->node.address = argv[4];
	CGN_TRY(state_announce_open(d->l, d->cfg, d->telemetry, &announce_ops, d, &d->announce, err));
	state_announce_update(d->announce, &d->node);
	return CGN_OK;
}

static void announce_left(void *arg)
{
	struct demo *d = arg;
	event_print("left", "");
	cgn_loop_stop(d->l);
}

/* ---- both ---- */

static void demo_quit(struct demo *d)
{
	if (uv_is_closing((uv_handle_t *)&d->input))
		return;
	(void)uv_poll_stop(&d->input);
	uv_close((uv_handle_t *)&d->input, NULL);
	if (d->announce != NULL)
		state_announce_leave(d->announce, announce_left, d);
	else
		cgn_loop_stop(d->l);
}

static void on_signal(void *arg, int signo)
{
	(void)signo;
	demo_quit(arg);
}

static void command_run(struct demo *d, char *line)
{
	struct cgn_err err;
	bool on = strncmp(line, "cordon ", 7) == 0;
	if (strcmp(line, "quit") == 0) {
		demo_quit(d);
	} else if (strcmp(line, "draining") == 0 || strcmp(line, "ready") == 0) {
		d->node.draining = line[0] == 'd';
		state_announce_update(d->announce, &d->node);
	} else if ((on || strncmp(line, "uncordon ", 9) == 0) &&
		!cgn_ok(state_cordon(d->watch, line + (on ? 7 : 9), on, cordon_done, d, &err))) {
		cordon_done(d, &err);
	}
}

static void on_input(uv_poll_t *h, int status, int events)
{
	struct demo *d = h->data;
	char *end;
	(void)status;
	(void)events;
	ssize_t n = read(0, d->line + d->n, sizeof d->line - 1 - d->n);
	if (n <= 0) {
		(void)uv_poll_stop(h);
		return;
	}
	d->n += (size_t)n;
	d->line[d->n] = '\0';
	while ((end = strchr(d->line, '\n')) != NULL) {
		*end = '\0';
		command_run(d, d->line);
		d->n -= (size_t)(end + 1 - d->line);
		memmove(d->line, end + 1, d->n + 1);
	}
}

static CGN_RC demo_start(struct demo *d, int argc, char **argv, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	CGN_TRY(disk_read_file(argv[2], 1U << 20, &text, err));
	CGN_TRY(settings_load(argv[2], cgn_buf_view(&text), NULL, NULL, 0, &d->cfg, err));
	d->telemetry = telemetry_new(NULL, 0);
	CGN_TRY(cgn_loop_new(&d->l, err));
	CGN_TRY(cgn_loop_signal(d->l, SIGTERM, on_signal, d, err));
	d->input.data = d;
	if (uv_poll_init(cgn_loop_uv(d->l), &d->input, 0) == 0)
		(void)uv_poll_start(&d->input, UV_READABLE, on_input);
	return argc > 4 ? start_agent(d, argv, err) : start_watch(d, err);
}

int main(int argc, char **argv)
{
	static struct demo d;
	struct cgn_err err = {0};
	if (argc < 3) {
		(void)fprintf(stderr, "usage: state_demo watch CONFIG | announce CONFIG ID ADDR\n");
		return 2;
	}
	if (!cgn_ok(demo_start(&d, argc, argv, &err)))
		return demo_die(&err);
	cgn_loop_run(d.l);
	grpc_server_free(&d.server);
	tls_ctx_free(&d.tls);
	state_watch_close(&d.watch);
	state_announce_close(&d.announce);
	cgn_loop_free(&d.l);
	config_free(&d.cfg);
	telemetry_free(&d.telemetry);
	return 0;
}
