/* SPDX-License-Identifier: Apache-2.0 */
/* grpc_echo serve PORT [ca cert key]: the Echo service, until SIGTERM.
 * grpc_echo call ADDR METHOD [text=T] [count=N] [delay=MS] [fail=STATUS] [size=N] [send=N] [timeout=MS]
 *   [stop=N] [ca=F cert=F key=F]: calls METHOD with |send| requests (1), then half-closes; cancels after
 *   |stop| answers. Prints one line per answer, then the status. */
#include <signal.h>
#include <string.h>

#include "grpc_demo.h"

static const char *const alpn[] = {"h2", NULL};

static void on_signal(void *arg, int signo)
{
	(void)signo;
	cgn_loop_stop(arg);
}

static int echo_die(const struct cgn_err *err)
{
	(void)fprintf(stderr, "grpc_echo: %s\n", err->msg);
	return 1;
}

static int echo_serve(struct cgn_loop *l, int argc, char **argv)
{
	struct demo d = {0};
	struct cgn_err err = {0};
	struct tls_ctx *tls = NULL;
	char addr[64];
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%s", argv[2]);
	if (argc > 5) {
		const struct tls_cfg cfg = {.server = true,
			.ca_file = argv[3],
			.cert_file = argv[4],
			.key_file = argv[5],
			.require_peer_cert = true,
			.alpn = alpn};
		if (!cgn_ok(tls_ctx_new(&cfg, &tls, &err)))
			return echo_die(&err);
	}
	if (!cgn_ok(demo_serve(&d, l, addr, tls, &err)) ||
		!cgn_ok(cgn_loop_signal(l, SIGTERM, on_signal, l, &err)))
		return echo_die(&err);
	(void)printf("listening on %u\n", grpc_server_port(d.server));
	(void)fflush(stdout);
	cgn_loop_run(l);
	grpc_server_free(&d.server);
	tls_ctx_free(&tls);
	return 0;
}

struct caller {
	struct cgn_loop *l;
	struct grpc_call *c;
	struct cgn_buf request;
	unsigned got, stop, to_send;
};

static void caller_push(struct caller *k)
{
	while (k->to_send > 0 && !grpc_over_mark(k->c)) {
		k->to_send--;
		grpc_send(k->c, &(struct iovec){k->request.p, k->request.n}, 1);
		if (k->to_send == 0)
			grpc_half_close(k->c);
	}
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct caller *k = user;
	Test__EchoReply *r = NULL;
	(void)c;
	if (!cgn_ok(pb_unpack(&test__echo_reply__descriptor, (struct cgn_str){(const char *)p, n}, &r,
		    NULL))) {
		(void)printf("nonsense\n");
		return;
	}
	(void)printf("answer %u %lu %zu %s\n", r->seq, (unsigned long)r->total, r->blob.len, r->text);
	pb_free(&r);
	k->got++;
	if (k->stop != 0 && k->got == k->stop) {
		grpc_cancel(&k->c);
		(void)printf("cancelled\n");
		cgn_loop_stop(k->l);
	}
}

static void on_drain(struct grpc_call *c, void *user)
{
	(void)c;
	caller_push(user);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct caller *k = user;
	(void)c;
	(void)printf("status %s %s\n", cgn_code_name(why->code), why->code == CGN_FINE ? "" : why->msg);
	cgn_loop_stop(k->l);
}

static const struct grpc_call_ops ops = {.on_message = on_message,
	.on_drain = on_drain,
	.on_close = on_close};

static char *option_find(int argc, char **argv, const char *name)
{
	size_t n = strlen(name);
	for (int i = 4; i < argc; i++)
		if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
			return argv[i] + n + 1;
	return NULL;
}

static uint32_t option_number(int argc, char **argv, const char *name, uint32_t fallback)
{
	const char *z = option_find(argc, argv, name);
	return z != NULL ? (uint32_t)strtoul(z, NULL, 10) : fallback;
}

static void make_request(struct caller *k, int argc, char **argv)
{
	static char none[] = "";
	Test__EchoRequest rq = TEST__ECHO_REQUEST__INIT;
	char *text = option_find(argc, argv, "text");
	rq.text = text != NULL ? text : none;
	rq.count = option_number(argc, argv, "count", 0);
	rq.delay_ms = option_number(argc, argv, "delay", 0);
	rq.fail = option_number(argc, argv, "fail", 0);
	rq.size = option_number(argc, argv, "size", 0);
	rq.blob = (ProtobufCBinaryData){rq.size, calloc(1, rq.size + 1)};
	pb_pack(&rq, &k->request);
	free(rq.blob.data);
	k->to_send = option_number(argc, argv, "send", 1);
	k->stop = option_number(argc, argv, "stop", 0);
}

static int echo_call(struct cgn_loop *l, int argc, char **argv)
{
	struct caller k = {.l = l};
	struct cgn_err err = {0};
	struct grpc_channel *ch = NULL;
	char path[128];
	struct tls_ctx *tls = NULL;
	const struct tls_cfg tls_cfg = {.ca_file = option_find(argc, argv, "ca"),
		.cert_file = option_find(argc, argv, "cert"),
		.key_file = option_find(argc, argv, "key"),
		.alpn = alpn};
	if (tls_cfg.ca_file != NULL && !cgn_ok(tls_ctx_new(&tls_cfg, &tls, &err)))
		return echo_die(&err);
	make_request(&k, argc, argv);
	(void)snprintf(path, sizeof path, "/test.Echo/%s", argv[3]);
	const struct grpc_channel_cfg cfg = {.addr = argv[2], .tls = tls};
	if (!cgn_ok(grpc_channel_new(l, &cfg, &ch, &err)) ||
		!cgn_ok(grpc_call_start(ch, path, option_number(argc, argv, "timeout", 0) * CGN_MSEC, &ops,
			&k, &k.c, &err)))
		return echo_die(&err);
	caller_push(&k);
	cgn_loop_run(l);
	grpc_channel_free(&ch);
	tls_ctx_free(&tls);
	cgn_buf_fini(&k.request);
	return 0;
}

int main(int argc, char **argv)
{
	struct cgn_loop *l = NULL;
	struct cgn_err err = {0};
	if (argc < 3 || (strcmp(argv[1], "call") == 0 && argc < 4)) {
		(void)fprintf(stderr,
			"usage: grpc_echo serve PORT [ca cert key] | call ADDR METHOD [name=value]...\n");
		return 2;
	}
	if (!cgn_ok(cgn_loop_new(&l, &err)))
		return echo_die(&err);
	int rc = strcmp(argv[1], "serve") == 0 ? echo_serve(l, argc, argv) : echo_call(l, argc, argv);
	cgn_loop_free(&l);
	return rc;
}
