/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kept_part parts[PARTS_MOST];
static size_t n_parts;
static unsigned later;

struct kept_part *kept_new(struct world_host *h, const char *name, world_main *fn, const char *const *argv)
{
	if (n_parts == PARTS_MOST)
		world_fail("the scenario has too many programs");
	struct kept_part *p = &parts[n_parts++];
	*p = (struct kept_part){.host = h, .main = fn};
	(void)snprintf(p->name, sizeof p->name, "%s", name);
	for (size_t i = 0; argv[i] != NULL; i++)
		p->argv[i] = argv[i];
	return p;
}

bool kept_runs(const struct kept_part *p)
{
	return p->proc != NULL && world_alive(p->proc);
}

void kept_start(struct kept_part *p)
{
	if (p->wanted)
		return;
	p->wanted = true;
	p->paused = false;
	p->since = p->started = world_now();
	p->proc = world_start(p->host, p->name, p->main, p->argv);
}

void kept_kill(struct kept_part *p)
{
	if (!p->wanted)
		return;
	p->wanted = false;
	p->since = world_now();
	world_kill(p->proc);
}

void kept_end(struct kept_part *p)
{
	if (!p->wanted || p->paused)
		return;
	p->wanted = false;
	p->since = world_now();
	world_signal(p->proc, SIGTERM);
	for (int i = 0; i < 1200 && world_alive(p->proc); i++)
		world_sleep(100 * WORLD_MS);
	if (world_alive(p->proc))
		world_fail("%s has not ended two minutes after SIGTERM", p->name);
	if (world_status(p->proc) != 0)
		world_fail("%s ended with status %d after SIGTERM", p->name, world_status(p->proc));
}

void kept_pause(struct kept_part *p, bool paused)
{
	if (!p->wanted || p->paused == paused)
		return;
	p->paused = paused;
	p->since = world_now();
	world_pause(p->proc, paused);
}

void kept_watch_parts(void)
{
	for (size_t i = 0; i < n_parts; i++)
		if (parts[i].wanted && !world_alive(parts[i].proc))
			world_fail("%s ended by itself with status %d", parts[i].name,
				world_status(parts[i].proc));
}

/* ---- later ---- */

struct thing {
	uint64_t ns;
	void (*fn)(void *arg, size_t n);
	void *arg;
	size_t n;
};

static void thing_run(void *arg)
{
	struct thing t = *(struct thing *)arg;
	free(arg);
	world_sleep(t.ns);
	t.fn(t.arg, t.n);
	later--;
}

void kept_later(uint64_t ns, void (*fn)(void *arg, size_t n), void *arg, size_t n)
{
	struct thing *t = CGN_NEW(struct thing);
	*t = (struct thing){ns, fn, arg, n};
	later++;
	world_spawn(thing_run, t);
}

void kept_settle(void)
{
	while (later > 0)
		world_sleep(100 * WORLD_MS);
}

/* ---- asking ---- */

int kept_ask(const struct kept_part *p, uint16_t port, const char *method, const char *path, const char *body,
	struct http_got *got)
{
	const struct http_want want = {.ip = world_host_address(p->host),
		.port = port,
		.method = method,
		.path = path,
		.headers = port == 8080 ? NULL : "X-Requested-With: try\r\n",
		.body = cgn_str_of(body),
		.timeout = 40 * WORLD_SEC};
	http_ask(&want, got);
	(void)cgn_buf_z(&got->body);
	return got->end == HTTP_WHOLE ? got->status : 0;
}

int64_t kept_number(const struct http_got *got, const char *name)
{
	char key[64];
	(void)snprintf(key, sizeof key, "\"%s\":", name);
	const char *at = got->body.n > 0 ? strstr(got->body.p, key) : NULL;
	return at != NULL ? strtoll(at + strlen(key), NULL, 10) : -1;
}

void kept_file(struct world_host *h, const char *path, const char *format, ...)
{
	char text[4096];
	va_list ap;
	va_start(ap, format);
	int n = vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	world_file_put(h, path, text, (size_t)n);
}
