/* SPDX-License-Identifier: Apache-2.0 */
/* print: the fingerprint of a llama-server, which says whose states mean the same to it: its build, its weights, and how it was started. Weights by
 * their content, so that nodes may keep them wherever they like. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "agent/keep.h"
#include "base/codec/codec.h"
#include "base/log/log.h"

#define PROPS_BYTES ((size_t)8 * 1024 * 1024) /* with a chat template */
#define READ_BYTES  ((size_t)1024 * 1024)
#define AGAIN       (5 * CGN_SEC)

struct print {
	struct keep *keep; /* NULL: nobody waits for it any more */
	struct fetch *props;
	struct cgn_timer again;
	bool on_pool;
	char model[4096], build[128];
	uint32_t slots;
	/* On the pool. */
	struct cgn_buf sums;
	int failed; /* errno */
};

/* ---- weights ---- */

static int sum_file(const char *path, struct cgn_buf *sums)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	XXH3_state_t *state = fd >= 0 ? XXH3_createState() : NULL;
	void *bytes = malloc(READ_BYTES);
	ssize_t n = -1;
	int failed = fd < 0 ? errno : ENOMEM;
	if (state != NULL && bytes != NULL) {
		(void)XXH3_128bits_reset(state);
		while ((n = read(fd, bytes, READ_BYTES)) > 0)
			(void)XXH3_128bits_update(state, bytes, (size_t)n);
		failed = n == 0 ? 0 : errno;
		XXH128_canonical_t sum;
		XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
		cgn_buf_add(sums, &sum, sizeof sum);
	}
	free(bytes);
	(void)XXH3_freeState(state);
	if (fd >= 0)
		(void)close(fd);
	return failed;
}

/* "…-00001-of-00003.gguf" is three files. Returns how many; |at| is where the number stands. */
static unsigned parts_of(const char *path, size_t *at)
{
	size_t n = strlen(path);
	unsigned first = 0, of = 0;
	const char *tail = n > 20 ? path + n - 20 : NULL;
	if (tail == NULL || sscanf(tail, "-%5u-of-%5u.gguf", &first, &of) != 2 || first != 1 || of > 10000)
		return 1;
	*at = n - 19;
	return of;
}

static void sum_work(void *arg)
{
	struct print *p = arg;
	size_t at = 0;
	unsigned parts = parts_of(p->model, &at);
	p->failed = sum_file(p->model, &p->sums);
	for (unsigned i = 2; i <= parts && p->failed == 0; i++) {
		char number[6], path[sizeof p->model];
		(void)snprintf(number, sizeof number, "%05u", i % 100000);
		(void)cgn_str_copyz(path, sizeof path, cgn_str_of(p->model));
		memcpy(path + at, number, 5);
		p->failed = sum_file(path, &p->sums);
	}
}

/* ---- all together ---- */

static void put_part(struct cgn_buf *b, const char *z)
{
	cgn_buf_add(b, z, strlen(z) + 1);
}

static struct digest digest_all(const struct print *p)
{
	const struct keep *k = p->keep;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	put_part(&b, "cognitora.slots.v1");
	put_part(&b, p->build);
	put_part(&b, k->tag_text);
	for (size_t i = 0; i < k->e->n_extra_args; i++)
		put_part(&b, k->e->extra_args[i]);
	cgn_buf_str(&b, cgn_buf_view(&p->sums));
	return digest_of(cgn_buf_view(&b));
}

static void print_free(struct print *p)
{
	cgn_buf_fini(&p->sums);
	free(p);
}

static void sum_done(void *arg)
{
	struct print *p = arg;
	struct keep *k = p->keep;
	p->on_pool = false;
	if (k == NULL) {
		print_free(p);
		return;
	}
	k->print = NULL;
	if (p->failed == 0 && !p->sums.bad) {
		struct digest d = digest_all(p);
		keep_printed(k, &d, p->slots, p->build);
	} else {
		char why[160];
		(void)snprintf(why, sizeof why, "%.100s: %s", p->model, strerror(p->failed));
		keep_trouble(k, "its weights can't be read", why);
	}
	print_free(p);
}

static bool props_read(struct print *p, struct cgn_str body)
{
	struct json_val doc;
	struct cgn_arena a;
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)))
		return false;
	cgn_arena_init(&a, (size_t)64 * 1024);
	uint64_t slots = json_get_u64(doc, "total_slots", 0);
	struct cgn_str build = json_get_str(doc, "build_info", &a), model = json_get_str(doc, "model_path", &a);
	bool ok = slots > 0 && slots <= SLOTS_MAX && build.n > 0 && cgn_str_copyz(p->build, sizeof p->build, build) &&
		  cgn_str_copyz(p->model, sizeof p->model, model);
	p->slots = (uint32_t)slots;
	cgn_arena_fini(&a);
	return ok;
}

static void ask(struct print *p);

static void on_again(struct cgn_timer *t)
{
	ask(CGN_CONTAINER(t, struct print, again));
}

static void on_props(void *user, const struct fetch_result *r)
{
	struct print *p = user;
	struct keep *k = p->keep;
	p->props = NULL;
	if (r->err->code == CGN_FINE && r->status == 200 && props_read(p, r->body)) {
		/* What was configured is where this machine has it; what it says may be relative to its own folder. */
		if (k->e->model_path != NULL)
			(void)cgn_str_copyz(p->model, sizeof p->model, cgn_str_of(k->e->model_path));
		p->on_pool = cgn_ok(cgn_loop_work(k->e->agent->loop, sum_work, sum_done, p));
		if (p->on_pool)
			return;
	}
	keep_trouble(k, "/props can't be read", r->err->code != CGN_FINE ? r->err->msg : "it has no total_slots, build_info and model_path");
	cgn_timer_set(&p->again, AGAIN);
}

static void ask(struct print *p)
{
	struct keep *k = p->keep;
	const struct fetch_ask get = {.client = k->e->client,
		.url = &k->e->url,
		.path = "/props",
		.authorization = k->e->authorization,
		.max_bytes = PROPS_BYTES,
		.timeout = AGAIN};
	if (!cgn_ok(fetch_start(k->e->agent->loop, &get, on_props, p, &p->props, NULL)))
		cgn_timer_set(&p->again, AGAIN);
}

void print_start(struct keep *k)
{
	struct print *p = k->print == NULL ? calloc(1, sizeof *p) : NULL;
	if (p == NULL)
		return;
	p->keep = k;
	cgn_timer_init(&p->again, k->e->agent->loop, on_again);
	k->print = p;
	ask(p);
}

void print_cancel(struct keep *k)
{
	struct print *p = k->print;
	k->print = NULL;
	if (p == NULL)
		return;
	p->keep = NULL;
	cgn_timer_cancel(&p->again);
	fetch_cancel(&p->props);
	if (!p->on_pool)
		print_free(p);
}
