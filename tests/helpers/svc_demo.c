/* SPDX-License-Identifier: Apache-2.0 */
/* svc_demo: the smallest daemon on the frame, for tests/e2e/test_svc.py. Work is opened and closed through
 * its admin port. */
#include "base/json/json.h"
#include "joint/daemon/svc/svc.h"

struct demo {
	struct svc *svc;
	uint64_t max_body, reloads;
	unsigned open;
	bool draining;
};

static struct demo demo;

static const char *admin_addr(const struct config *cfg)
{
	return cfg->router.listen_admin;
}

static cgn_nsec drain_timeout(const struct config *cfg)
{
	return cfg->router.drain_timeout;
}

static cgn_rc demo_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err)
{
	if (cfg->auth.api_keys_file != NULL)
		return CGN_FAIL(err, NOT_FOUND, "cannot read %s: svc_demo never can",
			cfg->auth.api_keys_file);
	demo = (struct demo){.svc = s, .max_body = cfg->router.max_body};
	*state = &demo;
	return CGN_OK;
}

static void demo_reload(void *state, const struct config *cfg)
{
	struct demo *d = state;
	d->max_body = cfg->router.max_body;
	d->reloads++;
}

static void demo_drain(void *state)
{
	struct demo *d = state;
	d->draining = true;
	if (d->open == 0)
		svc_drained(d->svc);
}

static bool demo_ready(void *state, struct cgn_buf *why)
{
	const struct demo *d = state;
	if (d->open > 2)
		cgn_buf_putz(why, "too much open work");
	return d->open <= 2;
}

static void demo_stop(void **take)
{
	*take = NULL;
}

static void answer_state(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	(void)h;
	(void)body;
	const struct demo *d = state;
	struct json_out o = json_out_to(&r->body);
	json_open(&o, '{');
	json_key(&o, "open");
	json_put_u64(&o, d->open);
	json_key(&o, "reloads");
	json_put_u64(&o, d->reloads);
	json_key(&o, "max_body");
	json_put_u64(&o, d->max_body);
	json_close(&o, '}');
}

static void answer_work(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	struct demo *d = state;
	if (cgn_str_is(h->path, "/work/open"))
		d->open++;
	else if (cgn_str_is(h->path, "/work/close") && d->open > 0)
		d->open--;
	else
		svc_admin_error(r, 409, "conflict", "nothing is open");
	if (d->draining && d->open == 0)
		svc_drained(d->svc);
	answer_state(state, h, body, r);
}

static void answer_echo(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	(void)state;
	r->content_type = "application/octet-stream";
	cgn_buf_str(&r->body, http_head_get(h, "x-prefix"));
	cgn_buf_str(&r->body, body);
}

static const struct svc_flag flags[] = {
	{"listen-admin", "router.listen_admin", "ADDR", "admin port"},
};
static const struct svc_admin_route routes[] = {
	{"GET", "/state", answer_state},
	{"POST", "/work/*", answer_work},
	{"POST", "/echo", answer_echo},
};

int main(int argc, char **argv)
{
	static const struct svc_program program = {
		.name = "svc-demo",
		.summary = "tries the frame of the daemons",
		.flags = flags,
		.n_flags = CGN_COUNT(flags),
		.admin = {"router.listen_admin", admin_addr},
		.drain_timeout = drain_timeout,
		.routes = routes,
		.n_routes = CGN_COUNT(routes),
		.start = demo_start,
		.reload = demo_reload,
		.drain = demo_drain,
		.ready = demo_ready,
		.stop = demo_stop,
	};
	return svc_main(&program, argc, argv);
}
