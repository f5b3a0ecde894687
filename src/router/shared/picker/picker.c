/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/picker/picker.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "io/wire/http/client.h"
#include "policy/route/queue/queue.h"
#include "router/shared/picker/picker_priv.h"

#define READY_EVERY  CGN_SEC
#define MESSAGE_MAX  ((uint32_t)64 << 20) /* A whole body may come in one message. */
#define GATEWAY_MOST 1024                 /* Questions to the gateway at once; more wait. */

static const struct grpc_method methods[] = {
	{"/envoy.service.ext_proc.v3.ExternalProcessor/Process", picker_on_call, 0},
};

CGN_RC picker_objective_check(const char *text, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(text), name = cgn_str_trim(cgn_str_split(&rest, '='));
	unsigned priority;
	if (name.n == 0 || !queue_priority_read(cgn_str_trim(rest), &priority))
		return CGN_FAIL(err, INVALID,
			"router.picker.objectives: \"%s\" is not NAME=PRIORITY with high, normal, low or a digit",
			text);
	return CGN_OK;
}

static void on_timer(struct cgn_timer *t)
{
	struct picker *p = CGN_CONTAINER(t, struct picker, timer);
	CGN_LIVE(p, PICKER_TAG);
	picker_ready_ask(p);
	cgn_timer_set(t, READY_EVERY);
}

static CGN_RC picker_open(struct picker *p, struct cgn_err *err)
{
	const struct http_client_cfg http = {.addr = p->cfg.addr,
		.tls = p->cfg.tls,
		.server_name = p->cfg.server_name,
		.max_conns = GATEWAY_MOST};
	p->messages =
		(struct grpc_budget){.limit = p->cfg.max_inflight, .setting = "router.max_inflight_body"};
	const struct grpc_server_cfg grpc = {.listen = p->cfg.listen,
		.max_message = MESSAGE_MAX,
		.budget = &p->messages,
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.health = true};
	CGN_TRY(cgn_loop_new(&p->loop, err));
	CGN_TRY(http_client_new(p->loop, &http, &p->gateway, err));
	CGN_TRY(grpc_server_new(p->loop, &grpc, p, &p->server, err));
	cgn_timer_init(&p->timer, p->loop, on_timer);
	cgn_timer_set(&p->timer, 0);
	return cgn_loop_start_thread(p->loop, "picker", err);
}

static void picker_drop(struct picker *p)
{
	if (p->gateway != NULL)
		http_client_free(&p->gateway);
	if (p->loop != NULL)
		cgn_loop_free(&p->loop);
	p->tag = 0;
	free(p);
}

CGN_RC picker_new(const struct picker_cfg *cfg, struct picker **out, struct cgn_err *err)
{
	struct picker *p = CGN_NEW(struct picker);
	p->tag = PICKER_TAG;
	p->cfg = *cfg;
	cgn_random(&p->instance, sizeof p->instance);
	cgn_list_init(&p->streams);
	cgn_rc rc = picker_open(p, err);
	if (!cgn_ok(rc)) {
		grpc_server_free(&p->server);
		picker_drop(p);
		return rc;
	}
	cgn_log(INFO, "picker.listening", F_STR("address", cfg->listen.addr),
		F_U64("port", grpc_server_port(p->server)), F_BOOL("tls", cfg->listen.tls != NULL));
	*out = p;
	return CGN_OK;
}

static void on_stop(struct cgn_loop *l, struct cgn_post *post)
{
	struct picker *p = CGN_CONTAINER(post, struct picker, stop);
	cgn_timer_cancel(&p->timer);
	grpc_server_free(&p->server); /* Ends the streams, and with them their questions. */
	http_client_free(&p->gateway);
	cgn_loop_stop(l);
}

void picker_free(struct picker **take)
{
	struct picker *p = CGN_TAKE_LIVE(take, PICKER_TAG);
	if (p == NULL)
		return;
	cgn_loop_post(p->loop, &p->stop, on_stop);
	cgn_loop_join(p->loop);
	picker_drop(p);
}
