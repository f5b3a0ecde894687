/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: a router, nodes with an agent and an engine each, and an engine beside them that says what the right answer
 * is. Parts that end are started again after a while, as a service manager does. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/who/auth/auth.h"
#include "scenario.h"

extern int cgn_router_main(int argc, char **argv);
extern int cgn_agent_main(int argc, char **argv);
extern int cgn_sim_main(int argc, char **argv);

struct cluster cluster;

void part_harm(struct part *p)
{
	p->harmed = cluster.last_harm = world_now();
}

void part_kill(struct part *p)
{
	if (p->proc == NULL || !world_alive(p->proc))
		return;
	part_harm(p);
	world_kill(p->proc);
}

/* Keep a part running. */
static void part_keep(void *arg)
{
	struct part *p = arg;
	for (;;) {
		if (p->proc != NULL && !world_alive(p->proc)) {
			part_harm(p);
			p->proc = NULL;
			p->ends = false;
			world_sleep(100 * WORLD_MS + world_draw(3 * WORLD_SEC));
		}
		if (p->proc == NULL) {
			p->proc = world_start(p->host, p->name, p->main, p->argv);
			p->harmed = p->harmed != 0 ? (cluster.last_harm = world_now()) : 0;
		}
		world_sleep(10 * WORLD_MS);
	}
}

static const char *text_new(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *text_new(const char *format, ...)
{
	char *p = NULL;
	va_list ap;
	va_start(ap, format);
	if (vasprintf(&p, format, ap) < 0)
		world_fail("no memory");
	va_end(ap);
	return p;
}

static void file_put(struct world_host *h, const char *path, struct cgn_buf *b)
{
	world_file_put(h, path, b->p != NULL ? b->p : "", b->n);
	cgn_buf_fini(b);
}

static void host_prepare(struct world_host *h)
{
	world_file_put(h, "/tmp/.keep", "", 0);
	world_file_put(h, "/var/lib/cognitora/.keep", "", 0);
	world_file_put(h, "/run/cognitora/.keep", "", 0);
}

static void engine_argv(struct part *p, const struct node *n)
{
	size_t i = 0;
	const char *const argv[] = {"cgn-sim", "--listen", "0.0.0.0:8000", "--model", "m", "--decode-ms",
		text_new("%llu", (unsigned long long)PLAN(decode_ms)), "--kv-blocks",
		text_new("%llu", (unsigned long long)PLAN(kv_blocks)), "--max-batch",
		text_new("%llu", (unsigned long long)PLAN(max_batch)), "--max-model-len", "8192", "--model",
		"s"};
	const size_t n_argv = CGN_COUNT(argv) - (PLAN(models) ? 0 : 2);
	for (; i < n_argv; i++)
		p->argv[i] = argv[i];
	if (n != NULL && n->odd && odd_fault((enum odd)PLAN(odd_engine))[0] != '\0') {
		p->argv[i++] = "--fault";
		p->argv[i++] = text_new("%s@every=%llu", odd_fault((enum odd)PLAN(odd_engine)),
			(unsigned long long)PLAN(odd_share));
	}
	if (n != NULL && PLAN(events)) {
		p->argv[i++] = "--kv-events";
		p->argv[i++] = "tcp://127.0.0.1:5557";
		p->argv[i++] = "--kv-events-replay";
		p->argv[i++] = "tcp://127.0.0.1:5657";
	}
	if (n != NULL && PLAN(handoff)) {
		p->argv[i++] = "--handoff";
		p->argv[i++] = handoff_name((enum dialect)PLAN(handoff));
		p->argv[i++] = "--role";
		p->argv[i++] = n->role;
		p->argv[i++] = "--handoff-host";
		p->argv[i++] = world_host_address(n->host);
		p->argv[i++] = "--kv-block-bytes";
		p->argv[i++] = "256";
	}
	p->argv[i] = NULL;
}

/* ---- keys ---- */

static void keys_make(void)
{
	struct cgn_buf b = {0};
	cluster.n_tenants = PLAN(tenants) < TENANTS_MOST ? PLAN(tenants) : TENANTS_MOST;
	for (size_t i = 0; i < cluster.n_tenants; i++) {
		struct tenant *t = &cluster.tenant[i];
		struct auth_key key = {.scopes = AUTH_CHAT | AUTH_EMBED};
		uint8_t entropy[AUTH_SECRET_BYTES];
		char secret[AUTH_SECRET_MAX];
		for (size_t k = 0; k < sizeof entropy; k++)
			entropy[k] = (uint8_t)world_draw(256);
		(void)snprintf(t->name, sizeof t->name, "tenant-%zu", i);
		(void)snprintf(key.tenant, sizeof key.tenant, "%s", t->name);
		if (!cgn_ok(auth_key_make(entropy, 1798761600, &key, secret, NULL)))
			world_fail("no key can be made");
		auth_key_format(&key, &b);
		(void)snprintf(t->header, sizeof t->header, "Authorization: Bearer %s\r\n", secret);
	}
	file_put(cluster.gate, "/etc/keys", &b);
}

static void names_put(struct cgn_buf *b)
{
	if (PLAN(models))
		cgn_buf_putz(b, "[models.\"m\"]\naliases = [\"nick\"]\n");
}

static void features_put(struct cgn_buf *b)
{
	if (PLAN(rate) > 0)
		cgn_buf_fmt(b, "[router.rate_limit]\nrps = %llu\nburst = %d\n",
			(unsigned long long)PLAN(rate), RATE_BURST);
	if (PLAN(cascade))
		cgn_buf_putz(b,
			"[router.cascade]\nenabled = true\nsmall_model = \"s\"\nlarge_model = \"m\"\nconfidence_threshold = -0.45\ntokens = 4\ncalibration_share = 0\n");
	if (PLAN(hook) == 0)
		return;
	cgn_buf_fmt(b, "[hooks]\ntimeout = \"1s\"\non_failure = \"%s\"\nafter_window = \"%s\"\n",
		PLAN(hook_allow) ? "allow" : "deny", PLAN(hook_window) ? "1KiB" : "0");
	if (PLAN(hook) & 1)
		cgn_buf_putz(b, "before_url = \"http://hook:8600/before\"\n");
	if (PLAN(hook) & 2)
		cgn_buf_putz(b, "after_url = \"http://hook:8600/after\"\n");
}

static void router_config(struct world_host *h)
{
	struct cgn_buf b = {0};
	cgn_buf_putz(&b,
		"[security]\ninsecure = true\n[log]\nformat = \"json\"\n[cluster]\nstate_backend = \"embedded\"\nstate_dir = \"/var/lib/cognitora\"\n"
		"[router]\nlisten = \"0.0.0.0:8080\"\nlisten_grpc = \"0.0.0.0:9090\"\nlisten_admin = \"0.0.0.0:9091\"\n");
	cgn_buf_fmt(&b,
		"worker_threads = %llu\nresume = %s\nsse_keepalive = \"%s\"\nfirst_byte_timeout = \"30s\"\nstream_idle_timeout = \"20s\"\n",
		(unsigned long long)PLAN(workers), PLAN(resume) ? "true" : "false",
		PLAN(keepalive) ? "1s" : "0s");
	if (PLAN(max_body) > 0)
		cgn_buf_fmt(&b, "max_body = \"%lluKiB\"\n", (unsigned long long)PLAN(max_body));
	features_put(&b);
	if (PLAN(concurrent) > 0)
		cgn_buf_fmt(&b, "[router.admission]\nmax_concurrent_per_replica = %llu\n",
			(unsigned long long)PLAN(concurrent));
	if (cluster.n_tenants > 0)
		cgn_buf_putz(&b, "[auth]\nenabled = true\napi_keys_file = \"/etc/keys\"\n");
	if (cluster.n_tenants > 0 && PLAN(budget) > 0)
		cgn_buf_fmt(&b, "[tenants.\"%s\"]\nbudgets = [\"%llu requests/month\"]\n",
			cluster.tenant[0].name, (unsigned long long)PLAN(budget));
	if (cluster.n_tenants > 1 && PLAN(budget_tokens) > 0)
		cgn_buf_fmt(&b, "[tenants.\"%s\"]\nbudgets = [\"%llu tokens/month\"]\n",
			cluster.tenant[1].name, (unsigned long long)PLAN(budget_tokens));
	names_put(&b);
	if (PLAN(handoff))
		cgn_buf_putz(&b, "[router.disagg]\nenabled = true\ncolocate_below_tokens = 32\n");
	file_put(h, "/etc/cognitora.toml", &b);
}

static void agent_config(const struct node *n)
{
	struct cgn_buf b = {0};
	cgn_buf_fmt(&b,
		"[security]\ninsecure = true\n[log]\nformat = \"json\"\n[cluster]\nrouter = \"%s:9090\"\nlease = \"5s\"\nstate_dir = \"/var/lib/cognitora\"\n"
		"[agent]\nnode_id = \"%s\"\nlisten = \"0.0.0.0:7080\"\nlisten_admin = \"0.0.0.0:7081\"\nadvertise = \"%s:7080\"\nheartbeat = \"1s\"\nrole = \"%s\"\ndirect = \"%s\"\n"
		"[engine]\nkind = \"sim\"\nurl = \"http://%s:%u\"\n",
		world_host_address(cluster.gate), n->name, world_host_address(n->host), n->role,
		PLAN(direct) ? "on" : "off", PLAN(direct) ? world_host_address(n->host) : "127.0.0.1",
		n->proxy.name != NULL ? 8001U : 8000U);
	if (PLAN(events))
		cgn_buf_putz(&b,
			"kv_events = \"tcp://127.0.0.1:5557\"\nkv_events_replay = \"tcp://127.0.0.1:5657\"\n");
	if (PLAN(handoff))
		cgn_buf_fmt(&b, "handoff = \"%s\"\nhandoff_port = 8000\nhandoff_host = \"%s\"\n",
			handoff_name((enum dialect)PLAN(handoff)), world_host_address(n->host));
	names_put(&b);
	file_put(n->host, "/etc/cognitora.toml", &b);
}

static void part_start(struct part *p, struct world_host *h, const char *name, world_main *fn)
{
	p->name = name;
	p->host = h;
	p->main = fn;
	if (p->argv[0] == NULL) {
		p->argv[0] = name;
		p->argv[1] = "--config";
		p->argv[2] = "/etc/cognitora.toml";
	}
	world_spawn(part_keep, p);
}

static void node_start(struct node *n, size_t i)
{
	(void)snprintf(n->name, sizeof n->name, "n%zu", i);
	n->host = world_host_new(text_new("node-%s", n->name));
	host_prepare(n->host);
	n->odd = i < PLAN(odd_nodes) && PLAN(odd_engine) != ODD_NOTHING;
	n->role = PLAN(handoff) == DIALECT_NONE ? "both" : i == 0 ? "prefill" : "decode";
	if (n->odd && odd_fault((enum odd)PLAN(odd_engine))[0] == '\0')
		part_start(&n->proxy, n->host, text_new("proxy-%s", n->name), proxy_main);
	agent_config(n);
	engine_argv(&n->engine, n);
	part_start(&n->engine, n->host, text_new("engine-%s", n->name), cgn_sim_main);
	part_start(&n->agent, n->host, text_new("agent-%s", n->name), cgn_agent_main);
}

bool part_ask(const struct part *p, uint16_t port, const char *path, struct http_got *got)
{
	const struct http_want want = {.ip = world_host_address(p->host),
		.port = port,
		.method = "GET",
		.path = path,
		.timeout = 5 * WORLD_SEC};
	http_ask(&want, got);
	return got->end == HTTP_WHOLE && got->status == 200;
}

static size_t ready_nodes(void)
{
	struct http_got got;
	size_t n = 0;
	if (part_ask(&cluster.router, 9091, "/nodes", &got))
		for (const char *p = got.body.p, *end = p + got.body.n;
			(p = memmem(p, (size_t)(end - p), "\"state\":\"ready\"", 15)) != NULL; p++)
			n++;
	http_got_fini(&got);
	return n;
}

void cluster_start(void)
{
	if (PLAN(handoff) != DIALECT_NONE && PLAN(nodes) < 2)
		plan.at[KNOB_nodes] = 2;
	if (PLAN(cascade))
		plan.at[KNOB_models] = 1;
	if (PLAN(direct)) /* An agent that sees no request knows the cache by the engine's events */
		plan.at[KNOB_events] = 1;
	cluster.n_nodes = PLAN(nodes) < NODES_MOST ? PLAN(nodes) : NODES_MOST;
	cluster.gate = world_host_new("gate");
	host_prepare(cluster.gate);
	keys_make();
	router_config(cluster.gate);
	cluster.twin_host = world_host_new("twin");
	host_prepare(cluster.twin_host);
	engine_argv(&cluster.twin, NULL);
	part_start(&cluster.twin, cluster.twin_host, "twin", cgn_sim_main);
	if (PLAN(hook) > 0) {
		cluster.hook_host = world_host_new("hook");
		hook_find = request_book;
		world_main *fn = fake_program(&hook_fake, cluster.hook.argv);
		part_start(&cluster.hook, cluster.hook_host, "hook", fn);
	}
	part_start(&cluster.router, cluster.gate, "router", cgn_router_main);
	for (size_t i = 0; i < cluster.n_nodes; i++)
		node_start(&cluster.node[i], i);
	uint64_t began = world_now();
	while (ready_nodes() < cluster.n_nodes) {
		if (world_now() - began > 60 * WORLD_SEC)
			world_fail(
				"the cluster is not ready: after a minute without faults not all nodes are");
		world_sleep(100 * WORLD_MS);
	}
	if (PLAN(handoff) != DIALECT_NONE)
		world_sleep(3 * WORLD_SEC); /* Until all have told how they hand over */
	world_tell("all %zu nodes are ready", cluster.n_nodes);
}
