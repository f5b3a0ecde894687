/* SPDX-License-Identifier: Apache-2.0 */
/* http_echo PORT [h2]: the demo application on 127.0.0.1, for curl, h2load, h2spec and the like. */
#include <signal.h>
#include <string.h>

#include "http_demo.h"

static void on_signal(void *arg, int signo)
{
	(void)signo;
	cgn_loop_stop(arg);
}

int main(int argc, char **argv)
{
	struct demo d = {0};
	struct cgn_loop *l = NULL;
	struct cgn_err err = {0};
	char addr[64];
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%s", argc > 1 ? argv[1] : "0");
	struct http_server_cfg cfg = {.listen = {.addr = addr},
		.h2_only = argc > 2 && strcmp(argv[2], "h2") == 0};
	if (!cgn_ok(cgn_loop_new(&l, &err)) ||
		!cgn_ok(http_server_new(l, &cfg, &demo_ops, &d, &d.server, &err)) ||
		!cgn_ok(cgn_loop_signal(l, SIGTERM, on_signal, l, &err))) {
		(void)fprintf(stderr, "http_echo: %s\n", err.msg);
		return 1;
	}
	(void)printf("listening on %u\n", http_server_port(d.server));
	(void)fflush(stdout);
	cgn_loop_run(l);
	struct http_server_stats s = http_server_stats(d.server);
	(void)printf("requests %lu bad %lu floods %lu fine %u cancelled %u other %u\n", s.requests,
		s.bad_requests, s.floods, d.fine, d.cancelled, d.other);
	http_server_free(&d.server);
	cgn_loop_free(&l);
	return 0;
}
