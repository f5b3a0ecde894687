/* SPDX-License-Identifier: Apache-2.0 */
/* health: grpc.health.v1, for probes and load balancers. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "grpc/health.pb-c.h"
#include "io/wire/grpc/grpc_priv.h"

#define HEALTH_WATCH_TAG 0x4ea17c0dU
/* Names that the Gateway API Inference Extension asks for: the process is there; it serves. */
#define HEALTH_LIVE  "liveness"
#define HEALTH_READY "readiness"
#define REQUEST_MAX  1024 /* Longest request: no service has a longer name. */

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

struct health_watch { /* A call of Check or Watch. */
	uint32_t tag;
	bool stream, known;
	bool live; /* Asks only whether the process is there. */
	struct grpc_health *health;
	struct grpc_call *call;
	struct cgn_link link;
};

static bool service_known(const struct grpc_health *h, const char *service)
{
	size_t n = strlen(service);
	if (strcmp(service, HEALTH_LIVE) == 0 || strcmp(service, HEALTH_READY) == 0)
		return true;
	for (size_t i = 0; i < h->n_methods && n > 0; i++) {
		const char *path = h->methods[i].path; /* "/package.Service/Method" */
		if (strncmp(path + 1, service, n) == 0 && path[1 + n] == '/')
			return true;
	}
	return n == 0;
}

static void status_answer(struct health_watch *w)
{
	uint8_t bytes[16];
	Grpc__Health__V1__HealthCheckResponse r = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	serving_status now = w->health->serving || w->live
		? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
		: GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
	r.status = w->known ? now : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
	grpc_send(w->call, &(struct iovec){bytes, grpc__health__v1__health_check_response__pack(&r, bytes)},
		1);
}

/* Read the service's name; returns false when the bytes are not a valid request. */
static bool read_request(struct health_watch *w, const uint8_t *p, size_t n)
{
	CGN_ON_EXIT(pb_free) Grpc__Health__V1__HealthCheckRequest *rq = NULL;
	if (n > REQUEST_MAX ||
		!cgn_ok(pb_unpack(&grpc__health__v1__health_check_request__descriptor,
			(struct cgn_str){(const char *)p, n}, &rq, NULL)))
		return false;
	w->known = service_known(w->health, rq->service);
	w->live = strcmp(rq->service, HEALTH_LIVE) == 0;
	return true;
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct health_watch *w = user;
	CGN_LIVE(w, HEALTH_WATCH_TAG);
	if (!cgn_list_empty(&w->link) || !read_request(w, p, n)) {
		grpc_finish(c, CGN_INVALID, "one HealthCheckRequest belongs here");
		return;
	}
	if (!w->stream && !w->known) {
		grpc_finish(c, CGN_NOT_FOUND, "unknown service");
		return;
	}
	status_answer(w);
	if (w->stream)
		cgn_list_push(&w->health->watches, &w->link);
	else
		grpc_finish(c, CGN_FINE, NULL);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	struct health_watch *w = user;
	if (cgn_list_empty(&w->link))
		grpc_finish(c, CGN_INVALID, "the call ended without a HealthCheckRequest");
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct health_watch *w = user;
	(void)c;
	(void)why;
	CGN_LIVE(w, HEALTH_WATCH_TAG);
	cgn_list_drop(&w->link);
	w->tag = 0;
	free(w);
}

static const struct grpc_call_ops ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_close = on_close};

static void watch_start(struct grpc_call *c, struct grpc_health *h, bool stream)
{
	struct health_watch *w = CGN_NEW(struct health_watch);
	*w = (struct health_watch){.tag = HEALTH_WATCH_TAG, .stream = stream, .health = h, .call = c};
	cgn_list_init(&w->link);
	grpc_call_take(c, &ops, w);
}

static void on_check(struct grpc_call *c, void *server_user)
{
	watch_start(c, server_user, false);
}

static void on_watch(struct grpc_call *c, void *server_user)
{
	watch_start(c, server_user, true);
}

const struct grpc_method grpc_health_methods[2] = {
	{"/grpc.health.v1.Health/Check", on_check},
	{"/grpc.health.v1.Health/Watch", on_watch},
};

void grpc_health_init(struct grpc_health *h, const struct grpc_server_cfg *cfg)
{
	cgn_list_init(&h->watches);
	h->methods = cfg->methods;
	h->n_methods = cfg->n_methods;
	h->serving = false;
}

void grpc_health_set(struct grpc_health *h, bool serving)
{
	if (h->serving == serving)
		return;
	h->serving = serving;
	cgn_list_each (it, &h->watches)
		status_answer(CGN_CONTAINER(it, struct health_watch, link));
}

void grpc_health_end(struct grpc_health *h)
{
	cgn_list_each (it, &h->watches)
		grpc_finish(CGN_CONTAINER(it, struct health_watch, link)->call, CGN_UNAVAILABLE,
			"the server is going away");
}
