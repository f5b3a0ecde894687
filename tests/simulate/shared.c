/* SPDX-License-Identifier: Apache-2.0 */
/* shared: several routers that share budgets and rates through Redis. What must hold:
 *   - a router answers no more requests than Redis granted it, and, for each time that Redis was away from it, the
 *     budget and the rate once more;
 *   - while Redis is there, the budget is charged with exactly what engines told, whatever ended or left meanwhile;
 *   - each refusal is one of Redis, or of the time when it was away;
 *   - all workers share again soon after the last fault. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_redis.h"
#include "parts.h"
#include "scenarios.h"

#define ROUTERS 3
#define AGENTS  2
#define WORKERS 2
#define SHARE   (12 * WORLD_SEC) /* Reconnecting every 0.1 to 5 s, a second for each step of the handshake */
#define SLOW    (60 * WORLD_MS)  /* An answer of Redis that is late, and in time */
#define ANSWER  24               /* max_tokens at most */
#define PROMPT  60               /* Tokens of a prompt at most, as a router or an engine counts them */

/* The answers in a span of time, as clients count them. */
struct sums {
	unsigned answered, refused, failed, open_ended; /* open_ended: cut, left, or without usage */
	uint64_t tokens, tokens_most; /* Tokens of answers with usage; the most tokens of all requests */
};
static struct {
	struct model_redis *redis;
	struct world_host *host;
	size_t n_routers;
	struct kept_part *routers[ROUTERS], *agents[AGENTS], *engines[AGENTS];
	uint64_t limit, tokens_limit, burst; /* burst 0: there is no rate */
	unsigned away[ROUTERS];              /* How often Redis was away from the router, at most */
	unsigned answered[ROUTERS];
	struct sums sums;
	unsigned clients;
	bool engines_fail, over;
} t;

/* ---- the cluster ---- */

static void agent_make(size_t i)
{
	static const char *const argv[] = {"cgn-agent", "--config", "/etc/cgn.toml", NULL};
	static const char *const sim[] = {"cgn-sim", "--model", "m", "--listen", "127.0.0.1:8000",
		"--decode-ms", "20", NULL};
	char name[24];
	(void)snprintf(name, sizeof name, "agent-%zu", i);
	struct world_host *h = world_host_new(name);
	kept_file(h, "/etc/cgn.toml",
		"[security]\ninsecure = true\n[agent]\nnode_id = \"n%zu\"\nlisten = \"0.0.0.0:7080\"\nlisten_admin = \"0.0.0.0:7081\"\n"
		"advertise = \"%s:7080\"\n[cluster]\nstate_backend = \"static\"\nnodes = [\"%s:7080\"]\n[engine]\nkind = \"sim\"\nurl = \"http://127.0.0.1:8000\"\n",
		i, world_host_address(h), world_host_address(h));
	kept_file(h, "/tmp/.keep", "%s", "");
	t.agents[i] = kept_new(h, name, cgn_agent_main, argv);
	t.engines[i] = kept_new(h, "cgn-sim", cgn_sim_main, sim);
}

static void rates_put(char *to, size_t cap)
{
	to[0] = '\0';
	if (t.burst > 0)
		(void)snprintf(to, cap, "rps = 1\nburst = %llu\n", (unsigned long long)t.burst);
}

static void router_make(size_t i)
{
	static const char *const argv[] = {"cgn-router", "--config", "/etc/cgn.toml", NULL};
	char name[24], rates[80];
	(void)snprintf(name, sizeof name, "router-%zu", i);
	struct world_host *h = world_host_new(name);
	rates_put(rates, sizeof rates);
	kept_file(h, "/etc/cgn.toml",
		"[security]\ninsecure = true\n[router]\nlisten = \"0.0.0.0:8080\"\nlisten_grpc = \"0.0.0.0:9090\"\n"
		"listen_admin = \"0.0.0.0:9091\"\nworker_threads = %d\n[cluster]\nstate_backend = \"static\"\nstate_dir = \"/var/lib/cgn\"\n"
		"nodes = [\"%s:7080\", \"%s:7080\"]\n[router.rate_limit]\nredis_url = \"redis://%s:%d/0\"\nredis_timeout = \"%llums\"\n%s"
		"[tenants.\"-\"]\nbudgets = [\"%llu requests/day\", \"%llu tokens/day\"]\n",
		WORKERS, world_host_address(t.agents[0]->host), world_host_address(t.agents[1]->host),
		world_host_address(t.host), REDIS_PORT, (unsigned long long)kept_between(300, 1000), rates,
		(unsigned long long)t.limit, (unsigned long long)t.tokens_limit);
	kept_file(h, "/var/lib/cgn/.keep", "%s", "");
	kept_file(h, "/tmp/.keep", "%s", "");
	t.routers[i] = kept_new(h, name, cgn_router_main, argv);
}

static void cluster_make(void)
{
	t.n_routers = kept_between(2, ROUTERS);
	t.limit = world_chance(2) ? 1000000 : kept_between(10, 150);
	t.tokens_limit = world_chance(2) ? 1000000 : kept_between(500, 5000);
	t.burst = world_chance(4) ? kept_between(5, 30) : 0;
	t.host = world_host_new("redis");
	t.redis = model_redis_new(t.host);
	for (size_t i = 0; i < AGENTS; i++)
		agent_make(i);
	for (size_t i = 0; i < t.n_routers; i++)
		router_make(i);
	model_redis_start(t.redis);
	for (size_t i = 0; i < AGENTS; i++) {
		kept_start(t.engines[i]);
		kept_start(t.agents[i]);
	}
	for (size_t i = 0; i < t.n_routers; i++)
		kept_start(t.routers[i]);
	world_sleep(5 * WORLD_SEC);
	kept_watch_parts();
}

/* ---- clients ---- */

static void answer_count(size_t router, const struct http_want *want, const struct http_got *got,
	uint64_t max_tokens)
{
	bool whole = got->end == HTTP_WHOLE;
	int64_t tokens = whole && got->status == 200 ? kept_number(got, "total_tokens") : -1;
	if (got->status == 200)
		t.answered[router]++;
	if (whole && got->status == 429) {
		t.sums.refused++;
		return;
	}
	if (tokens >= 0) {
		t.sums.answered++;
		t.sums.tokens += (uint64_t)tokens;
		t.sums.tokens_most += (uint64_t)tokens;
		return;
	}
	if (whole && got->status == 200 && strstr(want->body.p, "\"stream\":true") == NULL)
		world_fail("router %zu gives an answer without usage: %s", router, got->body.p);
	t.sums.failed += whole && got->status != 200;
	t.sums.open_ended += !whole || got->status == 200;
	t.sums.tokens_most += PROMPT + max_tokens;
}

static void client_ask(void)
{
	static const char *const streams[] = {"",
		",\"stream\":true,\"stream_options\":{\"include_usage\":true}", ",\"stream\":true"};
	struct http_got got;
	char body[300];
	size_t router = world_draw(t.n_routers);
	uint64_t max_tokens = kept_between(1, ANSWER);
	(void)snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"%.*s\",\"max_tokens\":%llu%s}",
		(int)(1 + world_draw(100)),
		"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen",
		(unsigned long long)max_tokens, streams[world_draw(3)]);
	struct http_want want = {.ip = world_host_address(t.routers[router]->host),
		.port = 8080,
		.method = "POST",
		.path = "/v1/completions",
		.body = cgn_str_of(body),
		.timeout = 60 * WORLD_SEC};
	if (world_chance(6))
		want.leave_at = 1 + world_draw(world_chance(2) ? SLOW : 500 * WORLD_MS);
	else if (world_chance(8))
		want.leave_after = 1 + world_draw(1500);
	http_ask(&want, &got);
	(void)cgn_buf_z(&got.body);
	answer_count(router, &want, &got, max_tokens);
	http_got_fini(&got);
}

static void client_run(void *arg)
{
	uint64_t pause = kept_between(10 * WORLD_MS, 2 * WORLD_SEC);
	(void)arg;
	while (!t.over) {
		client_ask();
		world_sleep(world_draw(pause));
	}
	t.clients--;
}

static void clients_start(void)
{
	t.over = false;
	for (t.clients = 0; t.clients < 4; t.clients++)
		world_spawn(client_run, NULL);
}

static void clients_end(void)
{
	t.over = true;
	while (t.clients > 0)
		world_sleep(50 * WORLD_MS);
	world_sleep(2 * WORLD_SEC); /* Until the last settlements have arrived */
}

/* ---- faults ---- */

static uint64_t some_time(void)
{
	return world_chance(3) ? kept_between(5 * WORLD_SEC, 40 * WORLD_SEC)
			       : kept_between(5 * WORLD_MS, 5 * WORLD_SEC);
}

static void away_note(void)
{
	for (size_t i = 0; i < t.n_routers; i++)
		t.away[i]++;
}

static void redis_heal(void *arg, size_t n)
{
	(void)arg;
	(void)n;
	model_redis_start(t.redis);
	model_redis_pause(t.redis, false);
	model_redis_slow(t.redis, 0);
	model_redis_refuse(t.redis, NULL);
}

static void fault_redis(void)
{
	static const char *const errors[] = {"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"OOM command not allowed when used memory > 'maxmemory'."};
	away_note();
	switch (world_draw(6)) {
	case 0:
		model_redis_kill(t.redis, !world_chance(3));
		break;
	case 1:
		model_redis_pause(t.redis, true);
		break;
	case 2:
		model_redis_slow(t.redis, kept_between(WORLD_MS, WORLD_SEC));
		break;
	case 3:
		model_redis_refuse(t.redis, errors[world_draw(3)]);
		break;
	case 4:
		model_redis_wipe(t.redis);
		return;
	default:
		world_wall_jump(t.host,
			(int64_t)kept_between(0, 50 * 3600 * WORLD_SEC) - (int64_t)(20 * 3600 * WORLD_SEC));
		return;
	}
	kept_later(some_time(), redis_heal, NULL, 0);
}

static void cut_end(void *arg, size_t n)
{
	(void)arg;
	world_cut(t.routers[n]->host, t.host, false);
}

static void fault_cut(void)
{
	size_t router = world_draw(t.n_routers);
	t.away[router]++;
	world_tell("router %zu and Redis are cut", router);
	world_cut(t.routers[router]->host, t.host, true);
	kept_later(some_time(), cut_end, NULL, router);
}

static void part_again(void *arg, size_t n)
{
	(void)n;
	kept_start(arg);
}

static void kept_continue(void *arg, size_t n)
{
	(void)n;
	kept_pause(arg, false);
}

static void fault_router(void)
{
	size_t router = world_draw(t.n_routers);
	struct kept_part *p = t.routers[router];
	t.away[router]++; /* A router that starts has no connection at first */
	if (world_chance(3)) {
		kept_pause(p, true);
		kept_later(some_time(), kept_continue, p, 0);
	} else {
		if (world_chance(2))
			kept_kill(p);
		else
			kept_end(p);
		kept_later(some_time(), part_again, p, 0);
	}
}

/* Faults that leave the charges exact. */
static void fault_engine(void)
{
	size_t i = world_draw(AGENTS);
	struct kept_part *p = world_chance(2) ? t.engines[i] : t.agents[i];
	t.engines_fail = true;
	if (world_chance(2))
		kept_kill(p);
	else
		kept_pause(p, true);
	if (p->paused)
		kept_later(some_time(), kept_continue, p, 0);
	else
		kept_later(some_time(), part_again, p, 0);
}

static void fault_one(bool calm)
{
	uint64_t which = world_draw(calm ? 4 : 10);
	if (which < 2)
		fault_engine();
	else if (which == 2)
		model_redis_forget_scripts(t.redis);
	else if (which == 3)
		world_wall_jump(t.routers[world_draw(t.n_routers)]->host,
			(int64_t)(world_draw(80 * 3600) * WORLD_SEC) - (int64_t)(40 * 3600 * WORLD_SEC));
	else if (which < 6)
		fault_router();
	else if (which == 6)
		fault_cut();
	else
		fault_redis();
}

/* ---- checks ---- */

/* The calls of a router that reserved, or, with NULL, of all. */
static unsigned deeds_count(const char *from, bool granted)
{
	static const char budget[] = ":requests:day";
	unsigned found = 0;
	size_t n;
	const struct redis_deed *d = model_redis_deeds(t.redis, &n);
	for (size_t i = 0; i < n; i++) {
		size_t len = strlen(d[i].key);
		bool is = len > strlen(budget) && strcmp(d[i].key + len - strlen(budget), budget) == 0;
		found += is && !d[i].settles && d[i].granted == granted &&
			(from == NULL || strcmp(d[i].from, from) == 0);
	}
	return found;
}

static void check_grants(void)
{
	uint64_t seconds = world_now() / WORLD_SEC + 1;
	for (size_t i = 0; i < t.n_routers; i++) {
		unsigned granted = deeds_count(world_host_address(t.routers[i]->host), true);
		uint64_t alone = t.away[i] * t.limit;
		if (t.burst > 0 && t.away[i] > 0 && t.away[i] * t.burst + seconds < alone)
			alone = t.away[i] * t.burst + seconds;
		if (t.answered[i] > granted + alone)
			world_fail(
				"router %zu answered %u requests, Redis granted it %u, and it was alone %u times",
				i, t.answered[i], granted, t.away[i]);
	}
}

/* Count the requests that the routers sent to a node, as their access logs say since |from|, which is brought to now. */
static unsigned tried_count(size_t from[ROUTERS])
{
	static const char line[] = "\"event\":\"gateway.request\"", tries[] = "\"tries\":";
	unsigned found = 0;
	for (size_t i = 0; i < t.n_routers; i++) {
		size_t n;
		const char *text = world_log(t.routers[i]->proc, &n), *end = text + n;
		const char *at = text + (from[i] < n ? from[i] : n);
		while ((at = memmem(at, (size_t)(end - at), line, strlen(line))) != NULL) {
			const char *is = memmem(at, (size_t)(end - at), tries, strlen(tries));
			found += is != NULL && is + strlen(tries) < end && is[strlen(tries)] != '0';
			at += strlen(line);
		}
		from[i] = n;
	}
	return found;
}

/* |spent|, |tokens|: charged since the sums began, in which nothing was away. */
static void check_charges(int64_t requests, int64_t tokens)
{
	const struct sums *s = &t.sums;
	world_tell(
		"charged %lld requests, %lld tokens; answered %u with %llu tokens, refused %u, failed %u, open %u, at most %llu tokens",
		(long long)requests, (long long)tokens, s->answered, (unsigned long long)s->tokens,
		s->refused, s->failed, s->open_ended, (unsigned long long)s->tokens_most);
	if (requests < (int64_t)s->answered || requests > (int64_t)(s->answered + s->open_ended + s->failed))
		world_fail("%lld requests are charged; %u were answered, %u failed, of %u the end is open",
			(long long)requests, s->answered, s->failed, s->open_ended);
	if (tokens < (int64_t)s->tokens || tokens > (int64_t)s->tokens_most)
		world_fail("%lld tokens are charged; engines told %llu, and at most %llu were made",
			(long long)tokens, (unsigned long long)s->tokens, (unsigned long long)s->tokens_most);
}

static void check_shared(size_t i)
{
	struct http_got got;
	char want[80];
	(void)snprintf(want, sizeof want, "cgn_rate_limit_store{store=\"redis\"} %d\n", WORKERS);
	if (kept_ask(t.routers[i], 9091, "GET", "/metrics", "", &got) != 200 ||
		strstr(got.body.p, want) == NULL)
		world_fail("router %zu does not share its limits again", i);
	http_got_fini(&got);
}

static int64_t spent_of(const char *unit)
{
	char name[40];
	(void)snprintf(name, sizeof name, "b:t:-:%s:day", unit);
	int64_t spent = model_redis_spent(t.redis, name);
	return spent > 0 ? spent : 0;
}

static void faults_run(bool calm)
{
	for (uint64_t n = world_draw(calm ? 4 : 9); n > 0; n--) {
		fault_one(calm);
		world_sleep(kept_between(0, world_chance(3) ? 15 * WORLD_SEC : 2 * WORLD_SEC));
		kept_watch_parts();
	}
	kept_settle();
}

/* A time in which nothing comes between the routers and Redis: everything is exact. */
static void calm_run(bool faults)
{
	int64_t requests = spent_of("requests"), tokens = spent_of("tokens"), day = model_redis_day(t.redis);
	unsigned refusals = deeds_count(NULL, false);
	size_t logs[ROUTERS] = {0};
	(void)tried_count(logs);
	t.sums = (struct sums){0};
	t.engines_fail = false;
	if (world_chance(2))
		model_redis_slow(t.redis, SLOW);
	clients_start();
	world_sleep(kept_between(WORLD_SEC, 15 * WORLD_SEC));
	if (faults)
		faults_run(true);
	clients_end();
	model_redis_slow(t.redis, 0);
	if (model_redis_day(t.redis) == day)
		check_charges(spent_of("requests") - requests, spent_of("tokens") - tokens);
	unsigned tried = tried_count(logs);
	if (model_redis_day(t.redis) == day && spent_of("requests") - requests > (int64_t)tried)
		world_fail("%lld requests are charged, and %u were sent to a node",
			(long long)(spent_of("requests") - requests), tried);
	if (t.sums.refused > deeds_count(NULL, false) - refusals)
		world_fail("%u requests were refused, and Redis refused %u", t.sums.refused,
			deeds_count(NULL, false) - refusals);
	if (t.sums.failed > 0 && !t.engines_fail)
		world_fail("%u requests failed, and nothing else did", t.sums.failed);
	check_grants();
}

static void storm_run(void)
{
	clients_start();
	world_sleep(kept_between(0, 10 * WORLD_SEC));
	faults_run(false);
	redis_heal(NULL, 0);
	clients_end();
	world_sleep(SHARE);
	check_grants();
	for (size_t i = 0; i < t.n_routers; i++)
		check_shared(i);
}

void scenario_shared(void *arg)
{
	(void)arg;
	cluster_make();
	calm_run(world_chance(2));
	if (world_chance(2)) {
		storm_run();
		calm_run(world_chance(2));
	}
	kept_watch_parts();
	for (size_t i = 0; i < t.n_routers; i++)
		kept_end(t.routers[i]);
}
