/* SPDX-License-Identifier: Apache-2.0 */
/* agent_fake LISTEN NODE_ID MODEL [BLOCKS]: an Agent whose Watch loses, repeats and misstates changes on
 * demand. BLOCKS: number of made-up blocks at the start. Prints {"port":N} first, then {"watch":N} for each
 * watch that opens (N: watches so far) and {"repair":[range, ...]} for each repair request. Lines on stdin:
 *   hold HEX MASK     the block is held, and reported
 *   hide HEX MASK     the block is held, and not reported: the event is lost without a gap in the numbers
 *   claim HEX MASK    the block is reported, and not held
 *   again             report everything once more, without a reset
 *   gap               skip one number
 *   check             send the sums of the held blocks
 *   lie               send wrong sums from now on
 *   nonsense          report a block in a tier that does not exist
 *   source sent|events [STALE_MS]
 * Generate is answered with UNAVAILABLE. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "io/wire/grpc/grpc.h"
#include "policy/node/proto/proto.h"

#define MAX_BLOCKS ((size_t)4 * 1024 * 1024)
#define CHUNK      ((size_t)65536)

struct fake {
	struct cgn_loop *loop;
	struct grpc_server *server;
	struct grpc_call *watch; /* The last watch that opened. */
	unsigned watches;
	uint64_t seq;
	Cognitora__V1__Node node;
	uint64_t *digests;
	uint8_t *tiers;
	size_t n;
	bool lies;
	Cognitora__V1__ResidencySource source;
	uint64_t stale_ms;
	struct cgn_timer poll;
	struct cgn_buf line;
};

static void send_event(struct fake *f, struct proto_event ev)
{
	struct cgn_buf b = {0};
	if (f->watch == NULL)
		return;
	ev.seq = ++f->seq;
	proto_watch_event(&ev, &b);
	CGN_MUST(!b.bad);
	grpc_send(f->watch, &(struct iovec){b.p, b.n}, 1);
	cgn_buf_fini(&b);
}

static void fake_tell(struct fake *f, const uint64_t *digests, const uint8_t *tiers, size_t n,
	const uint32_t *range)
{
	const struct proto_residency r = {.reset = range != NULL,
		.ranges = range,
		.n_ranges = range != NULL,
		.blocks = digests,
		.tiers = tiers,
		.n_blocks = n,
		.source = f->source,
		.stale_ms = f->stale_ms};
	send_event(f, (struct proto_event){.residency = &r});
}

static void tell_all(struct fake *f)
{
	for (size_t at = 0; at < f->n; at += CHUNK)
		fake_tell(f, f->digests + at, f->tiers + at, f->n - at < CHUNK ? f->n - at : CHUNK, NULL);
}

static void tell_range(struct fake *f, uint32_t range)
{
	uint64_t *digests = calloc(f->n + 1, sizeof *digests);
	uint8_t *tiers = calloc(f->n + 1, 1);
	size_t n = 0;
	CGN_MUST(digests != NULL && tiers != NULL);
	for (size_t i = 0; i < f->n; i++) {
		if (block_range(f->digests[i]) != range)
			continue;
		digests[n] = f->digests[i];
		tiers[n++] = f->tiers[i];
	}
	fake_tell(f, digests, tiers, n, &range);
	free(digests);
	free(tiers);
}

static void tell_sums(struct fake *f)
{
	uint64_t sums[BLOCK_RANGES] = {0}, blocks = 0;
	for (size_t i = 0; i < f->n; i++) {
		sums[block_range(f->digests[i])] ^= block_fingerprint(f->digests[i], f->tiers[i]);
		blocks += f->tiers[i] != 0;
	}
	sums[7] ^= f->lies;
	const struct proto_check check = {.sums = sums, .blocks = blocks};
	send_event(f, (struct proto_event){.check = &check});
}

static void truth_set(struct fake *f, uint64_t digest, uint8_t mask)
{
	size_t i = 0;
	while (i < f->n && f->digests[i] != digest)
		i++;
	CGN_MUST(i < MAX_BLOCKS);
	f->digests[i] = digest;
	f->tiers[i] = mask;
	f->n += i == f->n;
}

/* ---- stdin ---- */
static void command_obey(struct fake *f, const char *line)
{
	char verb[32] = "", word[64] = "";
	unsigned long long digest = 0;
	unsigned mask = 0;
	(void)sscanf(line, "%31s %63s", verb, word);
	(void)sscanf(line, "%*s %llx %u", &digest, &mask);
	const uint64_t d = digest;
	const uint8_t m = (uint8_t)mask;
	if (strcmp(verb, "hold") == 0 || strcmp(verb, "hide") == 0)
		truth_set(f, d, m);
	if (strcmp(verb, "hold") == 0 || strcmp(verb, "claim") == 0) {
		fake_tell(f, &d, &m, 1, NULL);
	} else if (strcmp(verb, "again") == 0) {
		tell_all(f);
	} else if (strcmp(verb, "gap") == 0) {
		f->seq++;
		send_event(f, (struct proto_event){0});
	} else if (strcmp(verb, "check") == 0) {
		tell_sums(f);
	} else if (strcmp(verb, "lie") == 0) {
		f->lies = true;
		tell_sums(f);
	} else if (strcmp(verb, "nonsense") == 0) {
		fake_tell(f, &(uint64_t){1}, &(uint8_t){16}, 1, NULL);
	} else if (strcmp(verb, "source") == 0) {
		f->source = strcmp(word, "events") == 0 ? COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS
							: COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SENT;
		(void)sscanf(line, "%*s %*s %u", &mask);
		f->stale_ms = mask;
		fake_tell(f, NULL, NULL, 0, NULL);
	} else if (strcmp(verb, "hide") != 0) {
		cgn_must_failed(line, CGN_HERE);
	}
}

static void on_poll(struct cgn_timer *t)
{
	struct fake *f = CGN_CONTAINER(t, struct fake, poll);
	char text[4096];
	ssize_t n;
	while ((n = read(0, text, sizeof text)) > 0)
		cgn_buf_add(&f->line, text, (size_t)n);
	for (char *nl; f->line.n > 0 && (nl = memchr(f->line.p, '\n', f->line.n)) != NULL;) {
		size_t whole = (size_t)(nl - f->line.p) + 1;
		*nl = '\0';
		command_obey(f, f->line.p);
		cgn_buf_eat(&f->line, whole);
	}
	if (n == 0)
		cgn_loop_stop(f->loop); /* The parent process has ended. */
	cgn_timer_set(t, 2 * CGN_MSEC);
}

/* ---- calls ---- */
static void open_watch(struct fake *f, struct grpc_call *c)
{
	static const Cognitora__V1__Load load = COGNITORA__V1__LOAD__INIT;
	const struct proto_residency r = {.reset = true, .source = f->source, .stale_ms = f->stale_ms};
	f->watch = c;
	f->seq = 0;
	(void)printf("{\"watch\":%u}\n", ++f->watches);
	(void)fflush(stdout);
	send_event(f, (struct proto_event){.node = &f->node, .load = &load, .residency = &r});
	tell_all(f);
	tell_sums(f);
}

static void repair_print(struct fake *f, const Cognitora__V1__WatchRequest *rq)
{
	(void)printf("{\"repair\":[");
	for (size_t i = 0; i < rq->n_repair; i++) {
		(void)printf("%s%u", i > 0 ? "," : "", rq->repair[i]);
		tell_range(f, rq->repair[i]);
	}
	(void)printf("]}\n");
	(void)fflush(stdout);
	tell_sums(f);
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct fake *f = user;
	struct cgn_err err = {0};
	CGN_ON_EXIT(pb_free) Cognitora__V1__WatchRequest *rq = NULL;
	if (!cgn_ok(pb_unpack(&cognitora__v1__watch_request__descriptor, (struct cgn_str){(const char *)p, n},
		    &rq, &err)))
		cgn_must_failed(err.msg, CGN_HERE);
	if (rq->n_repair == 0)
		open_watch(f, c);
	else if (f->watch == c)
		repair_print(f, rq);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	(void)user;
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct fake *f = user;
	(void)why;
	if (f->watch == c)
		f->watch = NULL;
}

static void on_watch(struct grpc_call *c, void *fake)
{
	static const struct grpc_call_ops ops = {.on_message = on_message,
		.on_half_close = on_half_close,
		.on_close = on_close};
	grpc_call_take(c, &ops, fake);
}

static void data_ignore(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	(void)p;
	(void)n;
}

static void watch_ended(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

static void on_generate(struct grpc_call *c, void *fake)
{
	static const struct grpc_call_ops ops = {.on_message = data_ignore,
		.on_half_close = on_half_close,
		.on_close = watch_ended};
	grpc_call_take(c, &ops, fake);
	grpc_finish(c, CGN_UNAVAILABLE, "a fake agent has no engine");
}

/* ---- main ---- */
static int by_digest(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* Make blocks range by range, as a real agent does. */
static void make_blocks(struct fake *f, size_t n)
{
	CGN_MUST(n <= MAX_BLOCKS);
	for (uint64_t i = 0; i < n; i++) {
		f->digests[i] = block_fingerprint(i, 1);
		f->tiers[i] = BLOCK_TIER_BIT(BLOCK_GPU);
	}
	qsort(f->digests, n, sizeof *f->digests, by_digest);
	f->n = n;
}

int main(int argc, char **argv)
{
	static const struct grpc_method methods[] = {{PROTO_AGENT_WATCH, on_watch},
		{PROTO_AGENT_GENERATE, on_generate}};
	struct fake f = {.node = COGNITORA__V1__NODE__INIT};
	Cognitora__V1__Engine engine = COGNITORA__V1__ENGINE__INIT, *engines[] = {&engine};
	struct cgn_err err = {0};
	char address[300];
	if (argc < 4) {
		(void)fputs("usage: agent_fake LISTEN NODE_ID MODEL [BLOCKS]\n", stderr);
		return 2;
	}
	f.digests = calloc(MAX_BLOCKS, sizeof *f.digests);
	f.tiers = calloc(MAX_BLOCKS, 1);
	CGN_MUST(f.digests != NULL && f.tiers != NULL);
	make_blocks(&f, argc > 4 ? strtoul(argv[4], NULL, 10) : 0);
	const struct grpc_server_cfg cfg = {.listen = {.addr = argv[1]},
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	if (!cgn_ok(cgn_loop_new(&f.loop, &err)) ||
		!cgn_ok(grpc_server_new(f.loop, &cfg, &f, &f.server, &err))) {
		(void)fprintf(stderr, "agent_fake: %s\n", err.msg);
		return 1;
	}
	(void)snprintf(address, sizeof address, "127.0.0.1:%u", grpc_server_port(f.server));
	f.node.id = argv[2];
	f.node.address = address;
	f.node.version = address + strlen(address);
	f.node.engines = engines;
	f.node.n_engines = 1;
	engine.name = engine.kind = argv[2];
	engine.models = &argv[3];
	engine.n_models = 1;
	engine.ready = true;
	(void)printf("{\"port\":%u}\n", grpc_server_port(f.server));
	(void)fflush(stdout);
	(void)fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
	cgn_timer_init(&f.poll, f.loop, on_poll);
	cgn_timer_set(&f.poll, CGN_MSEC);
	cgn_loop_run(f.loop);
	cgn_timer_cancel(&f.poll);
	grpc_server_free(&f.server);
	cgn_loop_free(&f.loop);
	cgn_buf_fini(&f.line);
	free(f.digests);
	free(f.tiers);
	return 0;
}
