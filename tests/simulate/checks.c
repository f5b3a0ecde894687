/* SPDX-License-Identifier: Apache-2.0 */
/* checks: the rules that hold when the last client has gone and the last fault is over. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "scenario.h"

extern int cgn_sim_main(int argc, char **argv);

#define REST_MOST (120 * WORLD_SEC) /* The time to come to rest after the last fault */

static char trouble[400];

/* Note the rule that does not hold yet. */
static bool not_yet(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool not_yet(const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	(void)vsnprintf(trouble, sizeof trouble, format, ap);
	va_end(ap);
	return false;
}

static bool text_is(struct json_val object, const char *key, const char *want)
{
	struct json_val v;
	size_t n = strlen(want);
	return json_get(object, key, &v) && v.type == JSON_STRING && v.raw.n == n + 2 &&
		memcmp(v.raw.p + 1, want, n) == 0;
}

/* Parse a document; |got| is to be freed by the caller. */
static bool document_read(const struct part *p, uint16_t port, const char *path, struct http_got *got,
	struct json_val *doc)
{
	if (!part_ask(p, port, path, got))
		return not_yet("%s of %s: %s, status %d", path, p->name, http_end_text(got->end),
			got->status);
	if (!cgn_ok(json_parse(cgn_buf_view(&got->body), doc, NULL, NULL)))
		world_fail("a document that is not JSON: %s of %s", path, p->name);
	return true;
}

static bool node_rests(struct json_val n)
{
	struct json_val breaker = {0}, id;
	if (!json_get(n, "id", &id))
		return not_yet("a node has no id");
	if (!text_is(n, "state", "ready"))
		return not_yet("node %.*s is not ready: %.*s", (int)id.raw.n, id.raw.p,
			(int)(n.raw.n < 300 ? n.raw.n : 300), n.raw.p);
	if (json_get_u64(n, "router_inflight", 99) != 0)
		return not_yet("node %.*s has %llu requests", (int)id.raw.n, id.raw.p,
			(unsigned long long)json_get_u64(n, "router_inflight", 99));
	if (json_get(n, "breaker", &breaker) && !text_is(breaker, "state", "closed") &&
		!text_is(breaker, "state", "half-open") && odd_is_harmless((enum odd)PLAN(odd_engine)))
		return not_yet("the breaker of node %.*s is open: %.*s", (int)id.raw.n, id.raw.p,
			(int)breaker.raw.n, breaker.raw.p);
	if (breaker.raw.n > 0 && memmem(breaker.raw.p, breaker.raw.n, "is trying it", 12) != NULL)
		return not_yet("the breaker of node %.*s waits for a request that is over: %.*s",
			(int)id.raw.n, id.raw.p, (int)breaker.raw.n, breaker.raw.p);
	return true;
}

/* The router knows a cache block for block, if the engine tells. */
static bool cache_rests(struct json_val n)
{
	struct json_val cache;
	for (size_t i = 0; i < cluster.n_nodes; i++) {
		const struct node *node = &cluster.node[i];
		if (!text_is(n, "id", node->name) || !json_get(n, "cache", &cache) ||
			cache.type != JSON_OBJECT)
			continue;
		/* An engine with little memory may drop a parent before its child: the agent then counts the sent blocks. */
		if (PLAN(kv_blocks) < 8192 && text_is(cache, "source", "sent"))
			continue;
		uint64_t known = json_get_u64(cache, "blocks", 0);
		if (PLAN(events) && !node->odd && known != node->held)
			return not_yet("the router knows %llu blocks at %s, which holds %llu: %.*s",
				(unsigned long long)known, node->name, (unsigned long long)node->held,
				(int)cache.raw.n, cache.raw.p);
	}
	return true;
}

static bool nodes_rest(struct json_val doc)
{
	struct json_val list, n;
	size_t count = 0;
	if (!json_get(doc, "nodes", &list) || list.type != JSON_ARRAY)
		return not_yet("/nodes has no nodes");
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &n); count++)
		if (!node_rests(n) || !cache_rests(n))
			return false;
	return count == cluster.n_nodes ||
		not_yet("the router knows %zu nodes of %zu", count, cluster.n_nodes);
}

static bool queue_rests(struct json_val doc)
{
	struct json_val list, q;
	if (!json_get(doc, "queues", &list) || list.type != JSON_ARRAY)
		return true;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &q);)
		if (json_get_u64(q, "requests", 0) != 0)
			return not_yet("requests wait in the queue: %.*s", (int)q.raw.n, q.raw.p);
	return true;
}

/* Files and batches stay. */
static bool share_rests(struct json_val share)
{
	return text_is(share, "share", "files") || text_is(share, "share", "batches") ||
		json_get_u64(share, "held", 0) == 0;
}

static bool tenant_rests(struct json_val t)
{
	struct json_val shares, s;
	if (!json_get(t, "shares", &shares) || shares.type != JSON_ARRAY)
		return not_yet("a tenant has no shares: %.*s", (int)t.raw.n, t.raw.p);
	for (struct json_iter it = json_iter_of(shares); json_next_elem(&it, &s);)
		if (!share_rests(s))
			return not_yet("a tenant without requests holds a share: %.*s", (int)t.raw.n,
				t.raw.p);
	return true;
}

static bool shares_rest(struct json_val doc)
{
	struct json_val list, t;
	if (!json_get(doc, "tenants", &list) || list.type != JSON_ARRAY)
		return not_yet("/tenants has no tenants");
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &t);)
		if (!tenant_rests(t))
			return false;
	return true;
}

static bool engine_rests(struct json_val doc)
{
	if (json_get_u64(doc, "running", 0) != 0 || json_get_u64(doc, "waiting", 0) != 0)
		return not_yet("an engine computes for nobody: %llu running, %llu waiting",
			(unsigned long long)json_get_u64(doc, "running", 0),
			(unsigned long long)json_get_u64(doc, "waiting", 0));
	return true;
}

static bool document_holds(const struct part *p, uint16_t port, const char *path,
	bool (*check)(struct json_val doc))
{
	struct http_got got;
	struct json_val doc;
	bool ok = document_read(p, port, path, &got, &doc) && check(doc);
	http_got_fini(&got);
	return ok;
}

/* Count the blocks that the node's engine holds. */
static bool blocks_count(struct node *node)
{
	struct http_got got;
	struct json_val doc, ranks, rank, list, one;
	bool ok = document_read(&node->engine, 8000, "/sim/blocks", &got, &doc) &&
		json_get(doc, "ranks", &ranks);
	node->held = 0;
	for (struct json_iter it = ok ? json_iter_of(ranks) : (struct json_iter){{0}};
		ok && json_next_elem(&it, &rank);)
		if (json_get(rank, "GPU", &list))
			for (struct json_iter k = json_iter_of(list); json_next_elem(&k, &one);)
				node->held++;
	http_got_fini(&got);
	return ok || not_yet("the engine of %s does not tell its blocks", node->name);
}

static bool all_rests(void)
{
	for (size_t i = 0; PLAN(events) && i < cluster.n_nodes; i++)
		if (!blocks_count(&cluster.node[i]))
			return false;
	bool ok = document_holds(&cluster.router, 9091, "/nodes", nodes_rest) &&
		document_holds(&cluster.router, 9091, "/queue", queue_rests) &&
		document_holds(&cluster.router, 9091, "/tenants", shares_rest);
	/* A stalled answer of an odd engine stays with it. */
	for (size_t i = 0; ok && i < cluster.n_nodes; i++)
		ok = cluster.node[i].odd ||
			document_holds(&cluster.node[i].engine, 8000, "/sim/state", engine_rests);
	return ok;
}

/* ---- memory ---- */

#define IDLE       (200 * WORLD_SEC) /* Connections without use have been closed by then */
#define PARTS_MOST (2 + 2 * NODES_MOST)
/* Return how many bytes more a program may have behind a round of requests than behind the same round before: tables of names;
 * tokens of prompts, which each worker of the router keeps; with KV events, blocks that another node computes this time. */
static size_t grows_most(void)
{
	return 4096 + (PLAN(workers) - 1) * 65536 + PLAN(events) * 65536;
}

/* The memory, descriptors and threads of a program at rest. */
struct holding {
	const struct part *part;
	const struct world_proc *proc;
	size_t bytes, descriptors, threads;
};

static size_t parts_list(struct holding *out)
{
	const struct part *parts[PARTS_MOST] = {&cluster.router, &cluster.twin};
	size_t n = 2;
	for (size_t i = 0; i < cluster.n_nodes; i++) {
		parts[n++] = &cluster.node[i].agent;
		parts[n++] = &cluster.node[i].engine;
	}
	for (size_t i = 0; i < n; i++)
		out[i] = (struct holding){parts[i], parts[i]->proc, SIZE_MAX, SIZE_MAX, SIZE_MAX};
	return n;
}

static void least_keep(size_t *least, size_t now)
{
	*least = now < *least ? now : *least;
}

/* Take the least of many looks: the programs ask each other about once a second. */
static void holding_look(struct holding *h)
{
	least_keep(&h->bytes, world_bytes(h->proc));
	least_keep(&h->descriptors, world_descriptors(h->proc));
	least_keep(&h->threads, world_threads(h->proc));
}

static size_t round_run(struct holding *out)
{
	load_run();
	world_sleep(IDLE);
	size_t n = parts_list(out);
	for (unsigned looks = 0; looks < 100; looks++, world_sleep(100 * WORLD_MS))
		for (size_t i = 0; i < n; i++)
			holding_look(&out[i]);
	return n;
}

/* A pool is filled once, perhaps by the second round: a leak grows by the third one too. */
static bool memory_grows(const struct holding *a, const struct holding *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (a[i].proc == b[i].proc && b[i].bytes > a[i].bytes + grows_most())
			return true;
	return false;
}

/* A second, identical round of requests leaves no more behind than the first one did. */
static void check_rounds(void)
{
	struct holding first[PARTS_MOST], second[PARTS_MOST];
	size_t n = round_run(first);
	(void)round_run(second);
	if (memory_grows(first, second, n)) {
		memcpy(first, second, sizeof first);
		(void)round_run(second);
	}
	for (size_t i = 0; i < n; i++) {
		const struct holding *a = &first[i], *b = &second[i];
		world_tell("%s of %s: %zu bytes, then %zu; %zu descriptors, then %zu; %zu threads, then %zu",
			a->part->name, a->part->argv[0], a->bytes, b->bytes, a->descriptors, b->descriptors,
			a->threads, b->threads);
		if (a->proc != b->proc)
			continue;
		bool keeps =
			PLAN(events) && a->part->main == cgn_sim_main; /* An engine keeps its last events */
		if (!keeps && b->bytes > a->bytes + grows_most())
			world_fail(
				"memory grows: %s has %zu bytes behind a round of requests, and had %zu behind the same one before",
				a->part->name, b->bytes, a->bytes);
		if (b->descriptors > a->descriptors)
			world_fail(
				"descriptors grow: %s has %zu behind a round of requests, and had %zu behind the same one before",
				a->part->name, b->descriptors, a->descriptors);
		if (b->threads > a->threads)
			world_fail(
				"threads grow: %s has %zu behind a round of requests, and had %zu behind the same one before",
				a->part->name, b->threads, a->threads);
	}
}

/* ---- usage ---- */

static const struct tenant *tenant_of(struct json_val row)
{
	for (size_t i = 0; i < cluster.n_tenants; i++)
		if (text_is(row, "tenant", cluster.tenant[i].name))
			return &cluster.tenant[i];
	return NULL;
}

/* Answers that were whole are charged; those that broke off or were left may be charged besides. */
static bool usage_rests(struct json_val doc)
{
	struct json_val list, row;
	const char *key = "usage";
	if (!json_get(doc, key, &list) || list.type != JSON_ARRAY)
		return not_yet("/usage has no usage");
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &row);) {
		const struct tenant *t = tenant_of(row);
		if (t == NULL)
			continue;
		if (json_get_u64(row, "estimated", 0) > 0)
			continue; /* Streams that told no usage */
		uint64_t in = json_get_u64(row, "input_tokens", 0),
			 out = json_get_u64(row, "output_tokens", 0);
		bool exact = t->unsure == 0 && PLAN(odd_engine) == ODD_NOTHING && cluster.last_harm == 0;
		if (in < t->prompt_tokens || out < t->completion_tokens ||
			(exact && (in != t->prompt_tokens || out != t->completion_tokens)))
			return not_yet("%s is charged %llu and %llu tokens, and used %llu and %llu", t->name,
				(unsigned long long)in, (unsigned long long)out,
				(unsigned long long)t->prompt_tokens,
				(unsigned long long)t->completion_tokens);
	}
	return true;
}

static void check_tenants(void)
{
	bool kept = cluster.router.harmed == 0 &&
		PLAN(clock) == 0; /* Usage of the last second goes with a router that is killed */
	if (cluster.n_tenants == 0 || !kept)
		return;
	if (!document_holds(&cluster.router, 9091, "/usage?by=tenant", usage_rests))
		world_fail("a wrong charge: %s", trouble);
	const struct tenant *t = &cluster.tenant[0];
	if (PLAN(budget) > 0 && t->answered > PLAN(budget))
		world_fail("a budget is passed: %s got %llu answers of %llu", t->name,
			(unsigned long long)t->answered, (unsigned long long)PLAN(budget));
	const struct tenant *u = &cluster.tenant[1];
	/* An estimate that was too low passes a budget once for each request at that time. */
	if (PLAN(budget_tokens) > 0 &&
		u->prompt_tokens + u->completion_tokens >
			PLAN(budget_tokens) + PLAN(clients) * TOGETHER_MOST * u->most_tokens)
		world_fail("a budget is passed: %s used %llu and %llu tokens of %llu", u->name,
			(unsigned long long)u->prompt_tokens, (unsigned long long)u->completion_tokens,
			(unsigned long long)PLAN(budget_tokens));
	/* Each tenant has one key. */
	for (size_t i = 0; PLAN(rate) > 0 && i < cluster.n_tenants; i++)
		if (cluster.tenant[i].answered > RATE_BURST + PLAN(rate) * world_now() / WORLD_SEC + 1)
			world_fail("a rate is passed: %s got %llu answers", cluster.tenant[i].name,
				(unsigned long long)cluster.tenant[i].answered);
	/* A request that failed may have been counted. */
	if (PLAN(budget) > 0 && t->over_budget > 0 && t->sent - t->over_budget < PLAN(budget) &&
		cluster.last_harm == 0)
		world_fail("a budget refuses too early: %s got %llu answers of %llu", t->name,
			(unsigned long long)t->answered, (unsigned long long)PLAN(budget));
}

/* The log has a line for each request that reached the router, if the router was never killed. */
static void check_log(void)
{
	size_t n, lines = 0;
	const char *log = world_log(cluster.router.proc, &n);
	for (const char *p = log, *end = log + n;
		p != NULL && (p = memmem(p, (size_t)(end - p), "\"gateway.request\"", 17)) != NULL; p++)
		lines++;
	if (cluster.router.harmed == 0 && lines != cluster.sent)
		world_fail("the access log has %zu lines for %llu requests", lines,
			(unsigned long long)cluster.sent);
}

/* ---- tenants ---- */

#define APART_WORDS 200 /* Some blocks of KV cache */

/* The tokens of a prompt, and those that the engine had in its cache. */
struct cost {
	bool answered;
	uint64_t prompt, cached; /* Tokens */
};

static struct cost prompt_cost(const struct tenant *t, struct cgn_str body)
{
	struct http_got got;
	struct json_val doc, usage, details;
	struct cost c = {0};
	struct http_want want = {.ip = world_host_address(cluster.router.host),
		.port = 8080,
		.method = "POST",
		.path = "/v1/completions",
		.headers = t->header,
		.body = body,
		.timeout = 60 * WORLD_SEC};
	http_ask(&want, &got);
	c.answered = got.end == HTTP_WHOLE && got.status == 200 &&
		cgn_ok(json_parse(cgn_buf_view(&got.body), &doc, NULL, NULL)) &&
		json_get(doc, "usage", &usage);
	if (c.answered) {
		c.prompt = json_get_u64(usage, "prompt_tokens", 0);
		c.cached = json_get(usage, "prompt_tokens_details", &details)
			? json_get_u64(details, "cached_tokens", 0)
			: 0;
	}
	http_got_fini(&got);
	return c;
}

/* Check that no prompt of a tenant is cached because another tenant has sent it. The time to the first byte follows from the cached
 * tokens. Hand-off is left out: the tokens that were handed over count as cached. */
static void check_apart(void)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	/* The hook knows drawn requests alone. */
	if (cluster.n_tenants < 2 || PLAN(handoff) != DIALECT_NONE || PLAN(odd_engine) != ODD_NOTHING ||
		PLAN(hook) > 0)
		return;
	cgn_buf_putz(&body, "{\"model\":\"m\",\"max_tokens\":2,\"prompt\":\"");
	for (unsigned i = 0; i < APART_WORDS; i++)
		cgn_buf_fmt(&body, "w%llu ", (unsigned long long)world_draw(1000));
	cgn_buf_putz(&body, "\"}");
	struct cost first = prompt_cost(&cluster.tenant[1], cgn_buf_view(&body)),
		    again = prompt_cost(&cluster.tenant[1], cgn_buf_view(&body)),
		    other = prompt_cost(&cluster.tenant[0], cgn_buf_view(&body));
	world_tell("a prompt of %llu tokens: %llu, then %llu are cached, of another tenant %llu",
		(unsigned long long)first.prompt, (unsigned long long)first.cached,
		(unsigned long long)again.cached, (unsigned long long)other.cached);
	if (first.answered && other.answered && other.cached > first.cached)
		world_fail("a tenant finds another's prompt: %llu of %llu tokens are cached",
			(unsigned long long)other.cached, (unsigned long long)other.prompt);
}

void checks_at_rest(void)
{
	uint64_t began = world_now();
	while (!all_rests()) {
		if (world_now() - began > REST_MOST)
			world_fail("no rest: %s", trouble);
		load_one(); /* A breaker closes by a request that is answered */
		world_sleep(WORLD_SEC);
	}
	world_tell("the longest turn of a loop of the router: %llu calls and KiB",
		(unsigned long long)world_longest_turn(cluster.router.proc));
	world_tell("at rest after %.1f s", (double)(world_now() - began) / 1e9);
	if (PLAN(rounds))
		check_rounds();
	world_sleep(2 * WORLD_SEC);
	check_log();
	check_tenants();
	check_apart();
}
