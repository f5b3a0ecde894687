/* SPDX-License-Identifier: Apache-2.0 */
/* federation: two clusters that are peers, a hosted API, a hook and an identity provider, with TLS and certificates
 * that end, under faults that the seed draws. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/wait.h>

#include "base/json/json.h"
#include "fed_priv.h"
#include "scenarios.h"

extern int cgn_router_main(int argc, char **argv);
extern int cgn_agent_main(int argc, char **argv);
extern int cgn_sim_main(int argc, char **argv);

#define NODES       2
#define STORM_S     20 /* Seconds in which requests and faults begin */
#define DAY_S       86400
#define PATIENCE    (150 * WORLD_SEC)
#define HEALED      (90 * WORLD_SEC) /* After the last fault */
#define ISSUER      "https://idp:8700"
#define REVOKED     (25 * WORLD_SEC) /* After this time a revoked node has left */
#define ENGINE_PORT 8000
#define REF_PORT    8009

struct program {
	struct world_host *host;
	const char *name;
	world_main *main;
	const char *argv[24];
	struct world_proc *proc;
	bool wanted;
	unsigned ends;
};
struct side {
	char letter;
	char names[1 + NODES][8]; /* The router's machine first, then the nodes' */
	struct world_host *hosts[1 + NODES];
	struct certs certs;
	struct program router, agents[NODES], engines[NODES];
	int decode_ms;
	unsigned leaves[1 + NODES]; /* Certificates that were made for each */
};
static struct side sides[2] = {{.letter = 'a'}, {.letter = 'b'}};
static struct world_host *ref, *apis, *hooks, *idps;
static struct certs outer; /* For the API, the hook and the provider */
static struct world_proc *fake_procs[3];
static bool over; /* Programs are not started again */

static struct plan {
	bool mtls, resume, before, after, allow, oidc, api, budget_small, away_only, short_certs, follow;
	bool wrong_clock, jumped; /* A clock of the cluster's machines is or was wrong */
	bool revokes, burst;
	bool batch;
	bool router_died; /* Requests that a router had may be lost */
	bool only_api;    /* Requests may leave for the hosted API alone */
	bool peerless;    /* The configuration lacks the peers */
	bool disturbed;   /* The hook's answers may have come too late */
	bool empty;       /* No node of a runs until the faults are over: all requests have to leave */
	unsigned rooms;
	unsigned faults;
} plan;

struct fed_request fed_requests[FED_REQUESTS];
unsigned fed_n;

struct fed_request *fed_request_in(struct cgn_str text)
{
	const char *at = memmem(text.p, text.n, "mk-", 3);
	if (at == NULL || (size_t)(text.p + text.n - at) < 6)
		return NULL;
	unsigned n = (unsigned)strtoul((char[]){at[3], at[4], at[5], '\0'}, NULL, 10);
	return n < fed_n ? &fed_requests[n] : NULL;
}

/* ---- configuration ---- */

static void peer_put(struct cgn_buf *b, const struct side *s, const struct side *to)
{
	bool goes = s->letter == 'a', comes = s->letter == 'b';
	cgn_buf_fmt(b,
		"[peers.\"%c\"]\nkind = \"cognitora\"\nca_file = \"/pki/%c-ca.pem\"\ncert_file = \"/pki/router.pem\"\nkey_file = \"/pki/router.key\"\n",
		to->letter, to->letter);
	if (goes)
		cgn_buf_fmt(b,
			"url = \"https://%s:8444\"\nmodels = [\"m\"]\ntenants = [\"*\"]\nresume = \"continue\"\nfirst_byte_timeout = \"3s\"\n",
			to->names[0]);
	if (comes)
		cgn_buf_putz(b, "listen = \"0.0.0.0:8444\"\naccepts = [\"m\"]\naccepts_tenants = [\"*\"]\n");
}

static void api_put(struct cgn_buf *b)
{
	cgn_buf_fmt(b,
		"[peers.\"api\"]\nkind = \"openai\"\nurl = \"https://api:8443/v1\"\nca_file = \"/pki/outer-ca.pem\"\nmodels = [\"m\"]\n"
		"tenants = [\"*\"]\ninput = %d\noutput = %d\ndaily_budget = %s\nfirst_byte_timeout = \"3s\"\n",
		FED_PRICE_IN, FED_PRICE_OUT, plan.budget_small ? "0.002" : "50");
}

static void hooks_put(struct cgn_buf *b)
{
	cgn_buf_putz(b, "[hooks]\nca_file = \"/pki/outer-ca.pem\"\n");
	if (plan.before)
		cgn_buf_putz(b, "before_url = \"https://hook:8600/before\"\n");
	if (plan.after)
		cgn_buf_putz(b, "after_url = \"https://hook:8600/after\"\nafter_window = \"2KiB\"\n");
	cgn_buf_fmt(b, "on_failure = \"%s\"\n", plan.allow ? "allow" : "deny");
}

static void security_put(struct cgn_buf *b, const struct side *s, const char *leaf)
{
	if (!plan.mtls) {
		cgn_buf_putz(b, "[security]\ninsecure = true\n");
		return;
	}
	cgn_buf_fmt(b,
		"[security]\nrequire_mtls = true\nca_file = \"/pki/%c-ca.pem\"\ncert_file = \"/pki/%s.pem\"\nkey_file = \"/pki/%s.key\"\n",
		s->letter, leaf, leaf);
	cgn_buf_fmt(b, "crl_file = \"/pki/%c-crl.pem\"\nfollow_files = %s\n", s->letter,
		plan.follow ? "true" : "false");
}

static void router_put(struct side *s)
{
	struct cgn_buf b = {0};
	bool a = s->letter == 'a';
	security_put(&b, s, "router");
	cgn_buf_fmt(&b,
		"[router]\nlisten = \"0.0.0.0:8080\"\nlisten_grpc = \"0.0.0.0:9090\"\nlisten_admin = \"127.0.0.1:9091\"\nworker_threads = 2\nresume = %s\n",
		plan.resume ? "true" : "false");
	cgn_buf_fmt(&b,
		"[router.federation]\nenabled = true\nmargin = \"0s\"\n[router.admission]\nmax_concurrent_per_replica = %u\nnode_wait = \"%s\"\nqueue_timeout = \"20s\"\n",
		plan.rooms, plan.away_only ? "0s" : "5s");
	cgn_buf_fmt(&b,
		"[cluster]\nname = \"%c\"\nstate_backend = \"embedded\"\nstate_dir = \"/var/lib/cgn\"\n",
		s->letter);
	if (!a || (!plan.peerless && !(plan.api && plan.only_api)))
		peer_put(&b, s, &sides[a ? 1 : 0]);
	if (a && plan.api && !plan.peerless)
		api_put(&b);
	if (a && (plan.before || plan.after))
		hooks_put(&b);
	if (a && plan.batch)
		cgn_buf_putz(&b, "[batch]\nenabled = true\n");
	if (a && plan.oidc)
		cgn_buf_putz(&b,
			"[auth]\nenabled = true\noidc_issuer = \"" ISSUER
			"\"\noidc_audience = \"cognitora\"\noidc_ca_file = \"/pki/outer-ca.pem\"\n");
	world_file_put(s->hosts[0], "/etc/cgn.toml", b.p, b.n);
	world_file_put(s->hosts[0], "/var/lib/cgn/.keep", "", 0);
	world_file_put(s->hosts[0], "/tmp/.keep", "", 0);
	cgn_buf_fini(&b);
}

static void agent_put(struct side *s, unsigned i)
{
	struct cgn_buf b = {0};
	struct world_host *h = s->hosts[1 + i];
	security_put(&b, s, "agent");
	cgn_buf_fmt(&b,
		"[agent]\nnode_id = \"%s\"\nlisten = \"0.0.0.0:7080\"\nlisten_admin = \"127.0.0.1:7081\"\nadvertise = \"%s:7080\"\n",
		s->names[1 + i], world_host_address(h));
	cgn_buf_fmt(&b,
		"[cluster]\nname = \"%c\"\nstate_backend = \"embedded\"\nrouter = \"%s:9090\"\n[engine]\nkind = \"sim\"\nmodel = \"m\"\nurl = \"http://127.0.0.1:%d\"\n",
		s->letter, s->names[0], ENGINE_PORT);
	world_file_put(h, "/etc/cgn.toml", b.p, b.n);
	world_file_put(h, "/tmp/.keep", "", 0);
	cgn_buf_fini(&b);
}

/* ---- certificates ---- */

static void leaf_put(struct side *s, unsigned host, int64_t seconds)
{
	s->leaves[host]++;
	int64_t now = (int64_t)(world_now() / WORLD_SEC) + 1798761600;
	certs_leaf(&s->certs, s->hosts[host], s->names[host], "/pki", host == 0 ? "router" : "agent",
		host == 0 ? "router" : "agent", now - DAY_S, now + seconds);
}

static void outer_put(struct world_host *h, const char *name)
{
	int64_t now = certs_now();
	certs_leaf(&outer, h, name, "/pki", name, "any", now - DAY_S, now + 30 * DAY_S);
}

static void papers_make(void)
{
	int64_t now = certs_now();
	certs_begin(&outer, "outer", now - DAY_S, now + 300 * DAY_S);
	for (size_t k = 0; k < 2; k++) {
		struct side *s = &sides[k];
		certs_begin(&s->certs, (char[]){s->letter, '\0'}, now - 2 * DAY_S, now + 300 * DAY_S);
		for (unsigned i = 0; i <= NODES; i++)
			if (i == 0 || plan.mtls) {
				bool brief = plan.short_certs && world_chance(2);
				leaf_put(s, i, brief ? (int64_t)(8 + world_draw(20)) : 30 * DAY_S);
				certs_crl_put(&s->certs, s->hosts[i], "/pki");
			}
	}
	for (size_t k = 0; k < 2; k++) {
		certs_ca_put(&sides[1 - k].certs, sides[k].hosts[0], "/pki");
		certs_ca_put(&outer, sides[k].hosts[0], "/pki");
	}
	outer_put(apis, "api");
	outer_put(hooks, "hook");
	outer_put(idps, "idp");
}

/* ---- programs ---- */

static void program_begin(struct program *p)
{
	p->wanted = true;
	p->proc = world_start(p->host, p->name, p->main, p->argv);
}

/* Start programs again that have ended, as a supervisor does. */
static void program_supervise(void *arg)
{
	struct program *p = arg;
	while (!over) {
		world_sleep(WORLD_SEC);
		if (!p->wanted || over || (p->proc != NULL && world_alive(p->proc)))
			continue;
		p->ends++;
		plan.router_died |= p->main == cgn_router_main;
		world_sleep(world_draw(2 * WORLD_SEC));
		if (p->wanted && !over)
			p->proc = world_start(p->host, p->name, p->main, p->argv);
	}
}

static void side_make(struct side *s)
{
	for (unsigned i = 0; i <= NODES; i++) {
		(void)snprintf(s->names[i], sizeof s->names[i], i == 0 ? "r%c" : "%c%u", s->letter, i);
		s->hosts[i] = world_host_new(s->names[i]);
	}
	s->decode_ms = 2 + (int)world_draw(30);
}

static void side_start(struct side *s)
{
	static char decode[2][12], listen_at[32];
	char *ms = decode[s->letter - 'a'];
	(void)snprintf(ms, sizeof decode[0], "%d", s->decode_ms);
	(void)snprintf(listen_at, sizeof listen_at, "127.0.0.1:%d", ENGINE_PORT);
	s->router = (struct program){s->hosts[0], "cgn-router", cgn_router_main,
		{"cgn-router", "--config", "/etc/cgn.toml"}, NULL, false, 0};
	router_put(s);
	program_begin(&s->router);
	world_spawn(program_supervise, &s->router);
	for (unsigned i = 0; i < NODES; i++) {
		s->engines[i] = (struct program){s->hosts[1 + i], "cgn-sim", cgn_sim_main,
			{"cgn-sim", "--model", "m", "--listen", listen_at, "--decode-ms", ms}, NULL, false,
			0};
		s->agents[i] = (struct program){s->hosts[1 + i], "cgn-agent", cgn_agent_main,
			{"cgn-agent", "--config", "/etc/cgn.toml"}, NULL, false, 0};
		agent_put(s, i);
		program_begin(&s->engines[i]);
		if (!plan.empty || s->letter == 'b')
			program_begin(&s->agents[i]);
		world_spawn(program_supervise, &s->engines[i]);
		world_spawn(program_supervise, &s->agents[i]);
	}
}

static struct hook_book *book_find(struct cgn_str question)
{
	struct fed_request *r = fed_request_in(question);
	return r != NULL ? &r->hook : NULL;
}

static void fakes_start(void)
{
	hook_find = book_find;
	hook_fake.cert = "/pki/hook.pem";
	hook_fake.key = "/pki/hook.key";
	fed_idp.user = (void *)(uintptr_t)ISSUER;
	fake_procs[0] = plan.api ? fake_start(apis, &fed_api) : NULL;
	fake_procs[1] = plan.before || plan.after ? fake_start(hooks, &hook_fake) : NULL;
	fake_procs[2] = plan.oidc ? fake_start(idps, &fed_idp) : NULL;
	if (!plan.oidc)
		return;
	for (unsigned i = 0; i < FED_KEYS; i++) {
		char kid[24];
		(void)snprintf(kid, sizeof kid, "key-%u", i);
		token_key_begin(&fed_keys[i], kid);
	}
	token_key_begin(&fed_foreign, "key-0");
	fed_keys_n = 1;
}

/* ---- the wire ---- */

static void on_wire(uint32_t to, uint16_t port, const char *p, size_t n)
{
	(void)to;
	if (port != ENGINE_PORT)
		return;
	struct fed_request *r = fed_request_in((struct cgn_str){p, n});
	if (r != NULL)
		r->at_engine = true;
}

/* ---- requests ---- */

void fed_body_put(const struct fed_request *r, bool stream, struct cgn_buf *b)
{
	if (r->chat)
		cgn_buf_fmt(b,
			"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"please say %s\"}]",
			r->marker);
	else
		cgn_buf_fmt(b, "{\"model\":\"m\",\"prompt\":\"please say %s\"", r->marker);
	cgn_buf_fmt(b, ",\"max_tokens\":%u,\"temperature\":0,\"stream\":%s}", r->tokens,
		stream ? "true" : "false");
}

static const char *path_of(const struct fed_request *r)
{
	return r->chat ? "/v1/chat/completions" : "/v1/completions";
}

/* Ask an engine of its own what the answer is. */
static void request_expect(struct fed_request *r)
{
	struct cgn_buf body = {0};
	struct told told;
	struct told_text text;
	fed_body_put(r, false, &body);
	ask_once(&(struct ask){.host = world_host_address(ref),
			 .port = REF_PORT,
			 .method = "POST",
			 .path = path_of(r),
			 .body = cgn_buf_view(&body),
			 .patience = PATIENCE},
		&told);
	told_text(&told, &text);
	if (told.status != 200 || !text.done || text.error)
		world_fail("the engine beside the clusters answers %d", told.status);
	cgn_buf_str(&r->expected, cgn_buf_view(&text.text));
	cgn_buf_fini(&text.text);
	told_fini(&told);
	cgn_buf_fini(&body);
}

static void request_draw(struct fed_request *r, unsigned n)
{
	*r = (struct fed_request){.n = n,
		.chat = world_chance(2),
		.stream = world_draw(3) > 0,
		.api_way = -1};
	(void)snprintf(r->marker, sizeof r->marker, "mk-%03u-%04x", n, (unsigned)world_draw(65536));
	r->to_b = world_draw(4) == 0;
	r->tokens = 1 + (unsigned)world_draw(world_chance(4) ? 300 : 40);
	r->who = world_chance(2) ? WHO_GOOD : (enum fed_who)world_draw(WHO_COUNT);
}

static void request_send(struct fed_request *r, uint64_t leaves_at)
{
	struct cgn_buf body = {0}, fields = {0}, token = {0};
	const struct side *s = &sides[r->to_b];
	cgn_buf_fmt(&fields, "X-Request-Id: %s\r\n", r->marker);
	if (plan.oidc && !r->to_b && r->who != WHO_NOBODY) {
		r->key = fed_keys_n - 1 - (fed_keys_n - fed_keys_from > 1 ? (unsigned)world_draw(2) : 0);
		fed_token(r, ISSUER, &token);
		cgn_buf_fmt(&fields, "Authorization: Bearer %s\r\n", cgn_buf_z(&token));
	}
	fed_body_put(r, r->stream, &body);
	world_tell("client: %s to %c, %u tokens%s", r->marker, s->letter, r->tokens,
		r->stream ? ", streamed" : "");
	ask_once(&(struct ask){.host = world_host_address(s->hosts[0]),
			 .port = 8080,
			 .method = "POST",
			 .path = path_of(r),
			 .fields = cgn_buf_z(&fields),
			 .body = cgn_buf_view(&body),
			 .patience = PATIENCE,
			 .leaves_at = leaves_at},
		&r->told);
	told_text(&r->told, &r->text);
	r->answered = true;
	world_note("answer", r->n, (uint64_t)r->told.status);
	world_tell("client: %s has %d%s%s%s%s%s, %zu bytes, of %s%s", r->marker, r->told.status,
		r->told.whole ? " whole" : "", r->told.late ? " late" : "", r->told.left ? " left" : "",
		r->text.error ? " error " : "", r->text.code, r->text.text.n, r->told.node, r->told.peer);
	cgn_buf_fini(&body);
	cgn_buf_fini(&fields);
	cgn_buf_fini(&token);
}

/* ---- invariants ---- */

static _Noreturn void request_broken(const struct fed_request *r, const char *what)
{
	world_fail(
		"%s: %s (status %d%s%s, error %s, node %s, peer %s, hook %u/%u/%u, who %d, api way %d)\ngot:      %.*s\nexpected: %.*s\nbody: %.*s",
		r->marker, what, r->told.status, r->told.whole ? " whole" : "", r->text.done ? " done" : "",
		r->text.code, r->told.node, r->told.peer, r->hook.allowed, r->hook.refused, r->hook.failed,
		(int)r->who, r->api_way, (int)r->text.text.n, r->text.text.n > 0 ? r->text.text.p : "",
		(int)r->expected.n, r->expected.n > 0 ? r->expected.p : "",
		(int)(r->told.body.n < 3000 ? r->told.body.n : 3000),
		r->told.body.n > 0 ? r->told.body.p : "");
}

static bool is_served(const struct fed_request *r)
{
	return r->told.status == 200 && r->text.done && !r->text.error;
}

static bool was_reached(const struct fed_request *r)
{
	return r->at_engine || r->at_api || r->told.status == 200;
}

static void hook_check(const struct fed_request *r)
{
	if (!plan.before || r->to_b)
		return;
	bool passes = r->hook.allowed > 0 ||
		(plan.allow && (r->hook.failed > 0 || r->hook.refused == 0 || plan.disturbed));
	if (!passes && was_reached(r))
		request_broken(r, "a request that the hook did not allow reached an engine");
	if (!passes && r->hook.refused > 0 && r->hook.allowed + r->hook.failed == 0 && r->told.status != 0 &&
		r->told.status != 403 && r->told.status != 401 && r->told.status != 503)
		request_broken(r, "a request that the hook refused has another answer");
}

static void hook_after_check(const struct fed_request *r)
{
	if (!plan.after || r->to_b || r->in_batch || !is_served(r))
		return;
	if (r->hook.after_refused > 0 && !(plan.allow && plan.disturbed))
		request_broken(r, "the hook after refused an answer that its client has");
	if (r->hook.after_allowed == 0 && !plan.allow)
		request_broken(r, "a client has an answer that the hook after did not allow");
}

static void token_check(const struct fed_request *r)
{
	if (!plan.oidc || r->to_b || r->who == WHO_GOOD || (plan.jumped && r->who == WHO_EXPIRED))
		return;
	if (was_reached(r))
		request_broken(r, "a wrong token was taken");
	if (r->told.status != 401 && r->told.status != 503 && r->told.status != 0)
		request_broken(r, "a wrong token has another answer");
}

static bool is_a_prefix(const struct fed_request *r)
{
	return r->text.text.n <= r->expected.n &&
		(r->text.text.n == 0 || memcmp(r->text.text.p, r->expected.p, r->text.text.n) == 0);
}

static void answer_check(const struct fed_request *r)
{
	static const int known[] = {0, 200, 400, 401, 403, 429, 500, 502, 503, 504};
	bool is_known = false, lied = r->lies > 0;
	for (size_t i = 0; i < CGN_COUNT(known); i++)
		is_known |= r->told.status == known[i];
	if (r->in_batch)
		return;
	if (r->told.late)
		request_broken(r, "a request got no answer");
	if (!is_known)
		request_broken(r, "an answer with an unknown status");
	if (r->told.left)
		return;
	if (r->told.status == 0 && !plan.router_died)
		request_broken(r, "a request was lost");
	if (r->told.status == 0)
		return;
	if (r->told.status == 200 && r->stream && !r->told.whole && !plan.router_died)
		request_broken(r, "a stream was cut without its protocol's error");
	if (r->told.status == 200 && r->told.whole && !r->text.done && !r->text.error && !lied)
		request_broken(r, "an answer ended without its end and without an error");
	if (r->text.strange && !lied)
		request_broken(r, "an answer that JSON readers refuse");
	if (r->told.status != 200 && !r->text.error)
		request_broken(r, "a refusal without an error object");
	if (!is_a_prefix(r))
		request_broken(r, "other bytes than an engine's");
	if (is_served(r) && !lied && r->text.text.n != r->expected.n)
		request_broken(r, "an answer that is whole lacks bytes");
}

/* The router's own numbers. */
static struct cgn_buf admin_get(struct side *s, const char *path)
{
	struct told told;
	ask_from(s->hosts[0],
		&(struct ask){.host = "127.0.0.1",
			.port = 9091,
			.method = "GET",
			.path = path,
			.patience = 20 * WORLD_SEC},
		&told);
	if (told.status != 200)
		world_fail("the admin port of %c answers %s with %d", s->letter, path, told.status);
	return told.body;
}

static bool peer_find(struct json_val all, const char *name, struct json_val *out)
{
	struct json_val list, key;
	if (!json_get(all, "peers", &list))
		return false;
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, out))
		if (json_get(*out, "peer", &key) && key.raw.n == strlen(name) + 2 &&
			memcmp(key.raw.p + 1, name, strlen(name)) == 0)
			return true;
	return false;
}

static void peers_check(void)
{
	struct cgn_buf text = admin_get(&sides[0], "/peers");
	struct json_val all, p, v;
	struct cgn_err err;
	uint64_t open = 0;
	if (!cgn_ok(json_parse(cgn_buf_view(&text), &all, NULL, &err)))
		world_fail("/peers cannot be read: %s", err.msg);
	world_tell("peers: %.*s", (int)text.n, text.p);
	if (!(plan.api && plan.only_api) &&
		(!peer_find(all, "b", &p) || !json_get(p, "open", &v) || !json_u64(v, &open) || open != 0))
		world_fail("requests at the peer b are still open: %.*s", (int)text.n, text.p);
	if (plan.api &&
		(!peer_find(all, "api", &p) || !json_get(p, "open", &v) || !json_u64(v, &open) || open != 0))
		world_fail("requests at the peer api are still open: %.*s", (int)text.n, text.p);
	double spent = 0;
	if (plan.api && json_get(p, "spent_today", &v))
		spent = strtod(v.raw.p, NULL);
	if (plan.api && spent * 1e6 > (double)fed_book.most + 1)
		world_fail("%g was spent at the hosted API, which told %g at most", spent,
			(double)fed_book.most / 1e6);
	cgn_buf_fini(&text);
}

static void quiet_check(struct side *s)
{
	static const char *const gauges[] = {"cgn_queue_depth", "cgn_inflight_requests",
		"cgn_requests_inflight", "cgn_inflight_body_bytes", "cgn_share_held"};
	struct cgn_buf text = admin_get(s, "/metrics");
	const char *z = cgn_buf_z(&text);
	for (size_t i = 0; i < CGN_COUNT(gauges); i++)
		for (const char *at = z; (at = strstr(at, gauges[i])) != NULL; at++) {
			const char *end = strchr(at, '\n'), *value = end;
			if ((at != z && at[-1] != '\n') || end == NULL)
				continue;
			while (value > at && value[-1] != ' ')
				value--;
			if (strtod(value, NULL) != 0)
				world_fail("%c is at rest, but %.*s", s->letter, (int)(end - at), at);
		}
	cgn_buf_fini(&text);
}

/* ---- faults ---- */

static struct program *program_draw(void)
{
	struct side *s = &sides[world_draw(2)];
	uint64_t k = world_draw(1 + 2 * NODES);
	return k == 0 ? &s->router : k <= NODES ? &s->agents[k - 1] : &s->engines[k - 1 - NODES];
}

static uint64_t time_draw(void)
{
	return world_draw(world_chance(3) ? 20 * WORLD_SEC : 2 * WORLD_SEC);
}

static void fault_cut(void)
{
	struct world_host *others[] = {sides[1].hosts[0], apis, hooks, idps, sides[0].hosts[1],
		sides[0].hosts[2]};
	struct world_host *a = sides[0].hosts[0], *b = others[world_draw(CGN_COUNT(others))];
	uint64_t ns = time_draw();
	world_tell("fault: %s is cut off from ra for %.3f s", world_host_address(b), (double)ns / 1e9);
	plan.disturbed |= b == hooks;
	world_cut(a, b, true);
	world_sleep(ns);
	world_cut(a, b, false);
	world_tell("fault: %s is joined", world_host_address(b));
}

static void fault_pause(void)
{
	struct program *p = program_draw();
	struct world_proc *proc = p->proc;
	if (proc == NULL)
		return;
	plan.disturbed |= p == &sides[0].router;
	world_pause(proc, true);
	world_sleep(time_draw());
	world_pause(proc, false);
}

static void fault_kill(void)
{
	struct program *p = program_draw();
	if (p->proc == NULL)
		return;
	plan.router_died |= p->main == cgn_router_main;
	world_tell("fault: %s on %s dies", p->name, world_host_address(p->host));
	if (world_chance(2))
		world_kill(p->proc);
	else
		world_signal(p->proc, SIGTERM);
}

static void program_hangup(const struct program *p)
{
	if (p->proc != NULL)
		world_signal(p->proc, SIGHUP);
}

static void fault_rotate(void)
{
	struct side *s = &sides[world_draw(2)];
	unsigned i = plan.mtls ? (unsigned)world_draw(1 + NODES) : 0;
	world_tell("fault: %s has a new certificate", s->names[i]);
	leaf_put(s, i, 20 * DAY_S);
	program_hangup(i == 0 ? &s->router : &s->agents[i - 1]);
}

static void crl_spread(struct side *s)
{
	for (unsigned i = 0; i <= NODES; i++)
		certs_crl_put(&s->certs, s->hosts[i], "/pki");
}

/* Return true if the router takes the node for ready; false too where its admin port does not answer. */
static bool node_is_ready(const struct side *s, const char *name)
{
	struct told told;
	struct json_val all, list, node, id, state;
	struct cgn_err err;
	bool ready = false;
	ask_from(s->hosts[0],
		&(struct ask){.host = "127.0.0.1",
			.port = 9091,
			.method = "GET",
			.path = "/nodes",
			.patience = 20 * WORLD_SEC},
		&told);
	if (told.status == 200 && cgn_ok(json_parse(cgn_buf_view(&told.body), &all, NULL, &err)) &&
		json_get(all, "nodes", &list)) {
		struct json_iter it = json_iter_of(list);
		while (json_next_elem(&it, &node))
			ready |= json_get(node, "id", &id) && json_get(node, "state", &state) &&
				id.raw.n == strlen(name) + 2 &&
				memcmp(id.raw.p + 1, name, strlen(name)) == 0 &&
				cgn_str_is(state.raw, "\"ready\"");
		world_tell("nodes: %s is %s", name, ready ? "ready" : "away");
	}
	told_fini(&told);
	return ready;
}

static void fault_revoke(void)
{
	struct side *s = &sides[world_draw(2)];
	unsigned i = (unsigned)world_draw(NODES);
	if (!plan.mtls)
		return;
	plan.revokes = true;
	world_tell("fault: the certificate of %s is revoked", s->names[1 + i]);
	certs_revoke(&s->certs, s->hosts[1 + i], "/pki", "agent");
	crl_spread(s);
	unsigned leaves = s->leaves[1 + i];
	world_sleep(REVOKED + time_draw());
	/* A connection keeps the certificate that it began with: one that was replaced before may go on. */
	if (!plan.jumped && leaves == 1 && s->leaves[1 + i] == leaves && node_is_ready(s, s->names[1 + i]))
		world_fail("the certificate of %s is revoked, and the router takes the node for ready",
			s->names[1 + i]);
	leaf_put(s, 1 + i, 20 * DAY_S);
	program_hangup(&s->agents[i]);
}

static void fault_clock(void)
{
	static const int64_t jumps[] = {40 * DAY_S, -40 * DAY_S, 3600, -3600, 2, -2};
	struct side *s = &sides[world_draw(2)];
	unsigned i = (unsigned)world_draw(1 + NODES);
	int64_t ns = jumps[world_draw(CGN_COUNT(jumps))] * (int64_t)WORLD_SEC;
	plan.jumped = true;
	world_tell("fault: the clock of %s jumps by %lld s", s->names[i],
		(long long)(ns / (int64_t)WORLD_SEC));
	world_wall_jump(s->hosts[i], ns);
	world_sleep(time_draw());
	world_wall_jump(s->hosts[i], -ns);
	world_tell("fault: the clock of %s jumps back", s->names[i]);
}

static void fault_keys(void)
{
	if (!plan.oidc)
		return;
	if (fed_keys_n < FED_KEYS)
		fed_keys_n++;
	world_sleep(time_draw());
	if (fed_keys_n - fed_keys_from > 1)
		fed_keys_from++;
	world_tell("fault: the provider has keys %u to %u", fed_keys_from, fed_keys_n - 1);
}

static void fault_reload(void)
{
	struct side *s = &sides[world_draw(2)];
	world_tell("fault: %c reads its configuration again", s->letter);
	router_put(s);
	world_signal(s->router.proc, SIGHUP);
}

/* The peers are removed from the configuration, and the router starts again while requests are there. */
static void fault_peerless(void)
{
	plan.peerless = plan.router_died = true;
	router_put(&sides[0]);
	world_tell("fault: a has no peers");
	program_hangup(&sides[0].router);
	world_sleep(time_draw());
	world_signal(sides[0].router.proc, SIGTERM);
}

static void fault_client(void)
{
	unsigned n = fed_n;
	if (n >= FED_REQUESTS)
		return;
	struct fed_request *r = &fed_requests[n];
	request_draw(r, n);
	fed_n++;
	request_expect(r);
	request_send(r, 1 + world_draw(3000));
}

static unsigned busy; /* Clients and faults at work */
static void fault_run(void *arg)
{
	static void (*const kinds[])(void) = {fault_cut, fault_cut, fault_pause, fault_pause, fault_kill,
		fault_rotate, fault_revoke, fault_clock, fault_keys, fault_reload, fault_peerless,
		fault_client, fault_client};
	(void)arg;
	world_sleep(world_draw(STORM_S * WORLD_SEC));
	kinds[world_draw(CGN_COUNT(kinds))]();
	busy--;
}

static void client_run(void *arg)
{
	world_sleep(plan.burst ? 8 * WORLD_SEC + world_draw(2 * WORLD_SEC) : world_draw(STORM_S * WORLD_SEC));
	request_send(arg, 0);
	busy--;
}

/* ---- the story ---- */

static void plan_draw(void)
{
	plan = (struct plan){.mtls = world_chance(3),
		.resume = world_chance(2),
		.before = world_chance(2),
		.after = world_chance(4),
		.allow = world_chance(2),
		.oidc = world_chance(3),
		.api = world_chance(2),
		.budget_small = world_chance(4),
		.away_only = world_chance(2),
		.short_certs = world_chance(4),
		.follow = world_chance(2),
		.wrong_clock = world_chance(8),
		.burst = world_chance(2),
		.empty = world_chance(3),
		.only_api = world_chance(2),
		.batch = world_chance(3)};
	plan.rooms = 1 + (unsigned)world_draw(3);
	plan.faults = (unsigned)world_draw(8);
	world_tell(
		"plan: mtls %d resume %d before %d after %d allow %d oidc %d api %d small %d short %d wrong clock %d rooms %u faults %u",
		plan.mtls, plan.resume, plan.before, plan.after, plan.allow, plan.oidc, plan.api,
		plan.budget_small, plan.short_certs, plan.wrong_clock, plan.rooms, plan.faults);
}

static void world_build(void)
{
	plan_draw();
	side_make(&sides[0]);
	side_make(&sides[1]);
	ref = world_host_new("ref");
	apis = world_host_new("api");
	hooks = world_host_new("hook");
	idps = world_host_new("idp");
	papers_make();
	static char at[32];
	(void)snprintf(at, sizeof at, "0.0.0.0:%d", REF_PORT);
	const char *const argv[] = {"cgn-sim", "--model", "m", "--listen", at, "--time-scale", "0", NULL};
	(void)world_start(ref, "cgn-sim", cgn_sim_main, argv);
	fakes_start();
	world_tap = on_wire;
	struct world_host *wrong = plan.wrong_clock ? sides[0].hosts[1] : NULL;
	if (wrong != NULL) {
		plan.jumped = true;
		world_wall_jump(wrong, 40 * DAY_S * (int64_t)WORLD_SEC);
	}
	side_start(&sides[0]);
	side_start(&sides[1]);
	world_sleep(3 * WORLD_SEC);
	if (wrong != NULL)
		world_wall_jump(wrong, -40 * DAY_S * (int64_t)WORLD_SEC);
}

/* ---- the batch ---- */

static bool has_batch; /* The router has taken it */

/* Return the token of the batch's maker, or NULL. Valid until the next call. */
static const char *batch_token(void)
{
	static struct cgn_buf token;
	struct fed_request maker = {.who = WHO_GOOD, .key = fed_keys_n - 1};
	token.n = 0;
	if (!plan.oidc)
		return NULL;
	fed_token(&maker, ISSUER, &token);
	return cgn_buf_z(&token);
}

static void batch_run(void *arg)
{
	(void)arg;
	world_sleep(world_draw(STORM_S * WORLD_SEC));
	has_batch = fed_batch_begin(world_host_address(sides[0].hosts[0]), batch_token(), 10 * WORLD_SEC);
	busy--;
}

static void batch_draw(void)
{
	for (unsigned n = 2 + (unsigned)world_draw(5); n > 0 && fed_n < FED_REQUESTS - 6; n--) {
		struct fed_request *r = &fed_requests[fed_n];
		request_draw(r, fed_n++);
		r->chat = r->in_batch = true;
		r->stream = r->to_b = false;
		r->who = WHO_GOOD;
		request_expect(r);
	}
	busy++;
	world_spawn(batch_run, NULL);
}

static void storm_run(void)
{
	unsigned n = 6 + (unsigned)world_draw(20);
	for (unsigned i = 0; i < n; i++) {
		request_draw(&fed_requests[i], i);
		fed_n = i + 1;
		request_expect(&fed_requests[i]);
	}
	busy = n + plan.faults;
	for (unsigned i = 0; i < n; i++)
		world_spawn(client_run, &fed_requests[i]);
	for (unsigned i = 0; i < plan.faults; i++)
		world_spawn(fault_run, NULL);
	if (plan.batch)
		batch_draw();
	while (busy > 0)
		world_sleep(100 * WORLD_MS);
}

/* All faults are over: certificates are new, and everybody reads them. */
static void faults_heal(void)
{
	bool starts = plan.peerless;
	fed_calm = hook_calm = true;
	plan.peerless = false;
	world_tell("the faults are over");
	for (size_t k = 0; k < 2; k++) {
		struct side *s = &sides[k];
		router_put(s);
		for (unsigned i = 0; i <= NODES; i++)
			if (i == 0 || plan.mtls)
				leaf_put(s, i, 20 * DAY_S);
		world_signal(s->router.proc, SIGHUP);
		for (unsigned i = 0; i < NODES; i++)
			if (s->agents[i].proc != NULL)
				world_signal(s->agents[i].proc, SIGHUP);
			else
				program_begin(&s->agents[i]);
	}
	if (starts)
		world_signal(sides[0].router.proc, SIGTERM);
	world_sleep(15 * WORLD_SEC);
}

/* Ask until it is served; HEALED after the last fault it has to be. */
static void final_request(struct fed_request *r, uint64_t until)
{
	for (;;) {
		request_send(r, 0);
		if (is_served(r))
			return;
		if (world_now() > until)
			request_broken(r, "the faults are over, and a request is not served");
		told_fini(&r->told);
		cgn_buf_fini(&r->text.text);
		world_sleep(5 * WORLD_SEC);
	}
}

static void final_requests(void)
{
	uint64_t until = world_now() + HEALED;
	for (unsigned k = 0; k < 4 && fed_n < FED_REQUESTS; k++) {
		struct fed_request *r = &fed_requests[fed_n];
		request_draw(r, fed_n++);
		r->who = WHO_GOOD;
		r->to_b = k % 2;
		request_expect(r);
		final_request(r, until);
	}
}

static bool has_ended(const struct program *p)
{
	return !world_alive(p->proc);
}

static void program_end(const struct side *s, const struct program *p, uint64_t until)
{
	while (!has_ended(p) && world_now() < until)
		world_sleep(100 * WORLD_MS);
	if (!has_ended(p) || world_status(p->proc) != 0)
		world_fail("%s of %c does not end as it should: %s, status %d", p->name, s->letter,
			has_ended(p) ? "it has ended" : "it runs", has_ended(p) ? world_status(p->proc) : 0);
}

static void programs_end(void)
{
	uint64_t until = world_now() + 60 * WORLD_SEC;
	over = true;
	for (int wait = 0; wait < 2; wait++)
		for (size_t k = 0; k < 2; k++) {
			struct side *s = &sides[k];
			struct program *all[] = {&s->router, &s->agents[0], &s->agents[1], &s->engines[0],
				&s->engines[1]};
			for (size_t i = 0; i < CGN_COUNT(all); i++)
				if (wait)
					program_end(s, all[i], until);
				else
					world_signal(all[i]->proc, SIGTERM);
		}
}

void scenario_federation(void *arg)
{
	(void)arg;
	world_build();
	storm_run();
	for (unsigned i = 0; i < fed_n; i++) {
		hook_check(&fed_requests[i]);
		hook_after_check(&fed_requests[i]);
		token_check(&fed_requests[i]);
		answer_check(&fed_requests[i]);
	}
	faults_heal();
	final_requests();
	if (has_batch && !plan.jumped)
		fed_batch_check(world_host_address(sides[0].hosts[0]), batch_token(), 300 * WORLD_SEC);
	for (unsigned i = 0; i < fed_n; i++)
		answer_check(&fed_requests[i]);
	world_sleep(10 * WORLD_SEC);
	peers_check();
	quiet_check(&sides[0]);
	quiet_check(&sides[1]);
	programs_end();
}
