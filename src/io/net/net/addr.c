/* SPDX-License-Identifier: Apache-2.0 */
/* addr: "host:port", "[v6]:port" and "unix:/path" as texts and as socket addresses. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "net_priv.h"

static bool host_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
		c == '.' || c == '_';
}

static bool host_ok(struct cgn_str h)
{
	for (size_t i = 0; i < h.n; i++)
		if (!host_char(h.p[i]))
			return false;
	return true;
}

static CGN_RC parse_port(const char *text, struct cgn_str s, struct net_addr *out, struct cgn_err *err)
{
	uint64_t port = 0;
	if (!cgn_str_u64(s, &port) || port > 65535)
		return CGN_FAIL(err, INVALID, "address \"%s\": \"%.*s\" is not a port (0 to 65535)", text,
			CGN_STR_ARG(s));
	(void)snprintf(out->port, sizeof out->port, "%u", (unsigned)port);
	return CGN_OK;
}

bool net_host_is_ip(const char *host)
{
	struct in6_addr any; /* Room for both kinds. */
	return inet_pton(AF_INET, host, &any) == 1 || inet_pton(AF_INET6, host, &any) == 1;
}

static CGN_RC parse_v6(const char *text, struct net_addr *out, struct cgn_err *err)
{
	struct in6_addr any;
	const char *end = strchr(text, ']');
	if (end == NULL || end[1] != ':')
		return CGN_FAIL(err, INVALID, "address \"%s\": write IPv6 as [address]:port", text);
	if (!cgn_str_copyz(out->host, sizeof out->host,
		    (struct cgn_str){text + 1, (size_t)(end - text) - 1}) ||
		inet_pton(AF_INET6, out->host, &any) != 1)
		return CGN_FAIL(err, INVALID, "address \"%s\": no IPv6 address between the brackets", text);
	return parse_port(text, cgn_str_of(end + 2), out, err);
}

static CGN_RC parse_unix(const char *text, struct net_addr *out, struct cgn_err *err)
{
	struct cgn_str path = cgn_str_of(text + strlen("unix:"));
	out->local = true;
	if (path.n == 0 || path.p[0] != '/')
		return CGN_FAIL(err, INVALID, "address \"%s\": give an absolute path after unix:", text);
	if (!cgn_str_copyz(out->path, sizeof out->path, path))
		return CGN_FAIL(err, INVALID, "address \"%s\": a socket path has at most %zu bytes", text,
			sizeof out->path - 1);
	return CGN_OK;
}

CGN_RC net_addr_parse(const char *text, struct net_addr *out, struct cgn_err *err)
{
	*out = (struct net_addr){0};
	if (strncmp(text, "unix:", 5) == 0)
		return parse_unix(text, out, err);
	if (text[0] == '[')
		return parse_v6(text, out, err);
	const char *colon = strrchr(text, ':');
	if (colon == NULL)
		return CGN_FAIL(err, INVALID, "address \"%s\": the port is missing (host:port)", text);
	struct cgn_str host = {text, (size_t)(colon - text)};
	if (memchr(host.p, ':', host.n) != NULL)
		return CGN_FAIL(err, INVALID, "address \"%s\": write IPv6 as [address]:port", text);
	if (!host_ok(host) || !cgn_str_copyz(out->host, sizeof out->host, host))
		return CGN_FAIL(err, INVALID, "address \"%s\": \"%.*s\" is not a host name", text,
			CGN_STR_ARG(host));
	return parse_port(text, cgn_str_of(colon + 1), out, err);
}

CGN_RC net_addr_check(const char *addr, struct cgn_err *err)
{
	struct net_addr a;
	return net_addr_parse(addr, &a, err);
}

void net_addr_unix(const struct net_addr *a, struct sockaddr_un *out)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(out->sun_path, a->path, sizeof out->sun_path);
}

int net_addr_resolve(const struct net_addr *a, bool numeric, bool passive, struct addrinfo **out)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	/* AI_ADDRCONFIG is left out: it hides localhost where only loopback is up, and an unreachable address
	 * fails at once anyway. */
	hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0) | (passive ? AI_PASSIVE : 0);
	return getaddrinfo(a->host[0] != '\0' ? a->host : NULL, a->port, &hints, out);
}

void net_addr_text(const struct sockaddr *sa, char *out, size_t cap)
{
	char host[INET6_ADDRSTRLEN] = "";
	if (sa->sa_family == AF_INET) {
		struct sockaddr_in in;
		memcpy(&in, sa, sizeof in);
		(void)inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
		(void)snprintf(out, cap, "%s:%u", host, ntohs(in.sin_port));
	} else if (sa->sa_family == AF_INET6) {
		struct sockaddr_in6 in6;
		memcpy(&in6, sa, sizeof in6);
		(void)inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
		/* A dual-stack listener reports IPv4 clients as ::ffff:a.b.c.d; operators look for
		 * a.b.c.d. */
		bool mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
		(void)snprintf(out, cap, mapped ? "%s:%u" : "[%s]:%u", mapped ? host + 7 : host,
			ntohs(in6.sin6_port));
	} else {
		(void)snprintf(out, cap, "unix");
	}
}

static CGN_RC source_of(const struct addrinfo *ai, const char *addr, char *out, size_t cap,
	struct cgn_err *err)
{
	struct sockaddr_storage me = {0};
	socklen_t len = sizeof me;
	int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool ok = fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
		getsockname(fd, (struct sockaddr *)&me, &len) == 0;
	int why = errno;
	if (fd >= 0)
		close(fd);
	if (!ok)
		return CGN_FAIL(err, UNAVAILABLE, "no route to %s: %s", addr, strerror(why));
	int rc = getnameinfo((struct sockaddr *)&me, len, out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST);
	if (rc != 0)
		return CGN_FAIL(err, INTERNAL, "own address towards %s: %s", addr, gai_strerror(rc));
	return CGN_OK;
}

CGN_RC net_route_source(const char *addr, char *out, size_t cap, struct cgn_err *err)
{
	struct net_addr a;
	CGN_TRY(net_addr_parse(addr, &a, err));
	if (a.local)
		return CGN_FAIL(err, INVALID, "%s is a socket on this machine: no route leads there", addr);
	struct addrinfo *list = NULL;
	int rc = net_addr_resolve(&a, false, false, &list);
	if (rc != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot resolve %s: %s", a.host, gai_strerror(rc));
	cgn_rc done = source_of(list, addr, out, cap, err);
	freeaddrinfo(list);
	return done;
}

void net_addr_group(struct cgn_str peer, char out[NET_ADDR_GROUP_MAX])
{
	struct in6_addr v6;
	size_t colon = peer.n;
	while (colon > 0 && peer.p[colon - 1] != ':')
		colon--;
	struct cgn_str host = {peer.p, colon > 0 ? colon - 1 : peer.n};
	bool bracketed = host.n > 2 && host.p[0] == '[';
	if (bracketed)
		host = (struct cgn_str){host.p + 1, host.n - 2};
	host = cgn_str_split(&host, '%'); /* The zone of a link-local address is cut off. */
	(void)cgn_str_copyz(out, NET_ADDR_GROUP_MAX, host);
	if (!bracketed || inet_pton(AF_INET6, out, &v6) != 1)
		return;
	if (IN6_IS_ADDR_V4MAPPED(&v6)) {
		(void)inet_ntop(AF_INET, &v6.s6_addr[12], out, NET_ADDR_GROUP_MAX);
		return;
	}
	memset(&v6.s6_addr[8], 0, 8);
	(void)inet_ntop(AF_INET6, &v6, out, NET_ADDR_GROUP_MAX);
	memcpy(out + strlen(out), "/64", sizeof "/64");
}
