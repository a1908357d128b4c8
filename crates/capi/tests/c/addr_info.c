/* rdma_getaddrinfo: what becomes of nodes, services and hints. What differs from rdma-core is in addr_here.c. */
#include "rule.h"
#include <netdb.h>

static struct rdma_addrinfo *got(const char *rule, const char *node, const char *service, struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *res = NULL;
	int answer = rdma_getaddrinfo(node, service, hints, &res);

	if (answer)
		FAIL(rule, "rdma_getaddrinfo answers %d", answer);
	CHECK(rule, res != NULL);
	return res;
}

static int refused(const char *node, const char *service, struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *res = NULL;
	int answer = rdma_getaddrinfo(node, service, hints, &res);

	if (!answer)
		rdma_freeaddrinfo(res);
	return answer;
}

static uint16_t port_in(const struct sockaddr *at)
{
	return ntohs(((const struct sockaddr_in *)at)->sin_port);
}

static void kinds(void)
{
	static const struct {
		int ps, type, gives_ps, gives_type;
	} kinds[] = {
		{ 0, 0, RDMA_PS_TCP, IBV_QPT_RC },
		{ RDMA_PS_TCP, 0, RDMA_PS_TCP, IBV_QPT_RC },
		{ 0, IBV_QPT_RC, RDMA_PS_TCP, IBV_QPT_RC },
		{ RDMA_PS_UDP, 0, RDMA_PS_UDP, IBV_QPT_UD },
		{ 0, IBV_QPT_UD, RDMA_PS_UDP, IBV_QPT_UD },
		{ RDMA_PS_IPOIB, 0, RDMA_PS_IPOIB, IBV_QPT_UD },
		{ RDMA_PS_IB, 0, RDMA_PS_IB, IBV_QPT_RC },
		{ RDMA_PS_IB, IBV_QPT_UC, RDMA_PS_IB, IBV_QPT_UC },
		{ RDMA_PS_IB, IBV_QPT_UD, RDMA_PS_IB, IBV_QPT_UD },
		{ RDMA_PS_IB, IBV_QPT_XRC_SEND, RDMA_PS_IB, IBV_QPT_XRC_SEND },
		{ RDMA_PS_TCP, IBV_QPT_UC, RDMA_PS_TCP, IBV_QPT_UC },
	};

	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		struct rdma_addrinfo hints = { .ai_port_space = kinds[i].ps, .ai_qp_type = kinds[i].type };
		struct rdma_addrinfo *res = got("addrinfo-kind", rule_text, "7471", &hints);

		if (res->ai_port_space != kinds[i].gives_ps || res->ai_qp_type != kinds[i].gives_type)
			FAIL("addrinfo-kind", "case %u: port space %#x, type %d", i, res->ai_port_space, res->ai_qp_type);
		rdma_freeaddrinfo(res);
	}
	ok("addrinfo-kind");

	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP, .ai_qp_type = IBV_QPT_RC };
	CHECK("addrinfo-mismatch", refused(rule_text, "7471", &hints) == EAI_SOCKTYPE);
	ok("addrinfo-mismatch");
}

static void numeric(void)
{
	struct rdma_addrinfo *res = got("addrinfo-active", rule_text, "7471", NULL);
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST };

	CHECK("addrinfo-active", res->ai_family == rule_base.ss_family && res->ai_flags == 0);
	CHECK("addrinfo-active", res->ai_dst_addr && res->ai_dst_addr->sa_family == rule_base.ss_family);
	CHECK("addrinfo-active", port_in(res->ai_dst_addr) == 7471);
	CHECK("addrinfo-active", res->ai_dst_len == (rule_base.ss_family == AF_INET ? sizeof(struct sockaddr_in) :
											sizeof(struct sockaddr_in6)));
	CHECK("addrinfo-active", !res->ai_src_addr && !res->ai_src_len);
	CHECK("addrinfo-active", !res->ai_route && !res->ai_route_len && !res->ai_connect && !res->ai_connect_len);
	CHECK("addrinfo-active", !memcmp(res->ai_dst_addr, address(7471), res->ai_dst_len));
	rdma_freeaddrinfo(res);
	ok("addrinfo-active");

	res = got("addrinfo-numeric", rule_text, NULL, &hints);
	CHECK("addrinfo-numeric", port_in(res->ai_dst_addr) == 0);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-numeric", refused("localhost", "7471", &hints) == EAI_NONAME);
	ok("addrinfo-numeric");

	res = got("addrinfo-name", "localhost", "7471", NULL);
	CHECK("addrinfo-name", res->ai_dst_addr && port_in(res->ai_dst_addr) == 7471);
	rdma_freeaddrinfo(res);
	ok("addrinfo-name");

	hints = (struct rdma_addrinfo){ .ai_family = AF_INET };
	res = got("addrinfo-family", "localhost", "7471", &hints);
	CHECK("addrinfo-family", res->ai_family == AF_INET && res->ai_dst_addr->sa_family == AF_INET);
	rdma_freeaddrinfo(res);
	hints.ai_family = AF_INET6;
	hints.ai_flags = RAI_NUMERICHOST;
	res = got("addrinfo-family", "::1", "7471", &hints);
	CHECK("addrinfo-family", res->ai_family == AF_INET6);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-family", refused("127.0.0.1", "7471", &hints) != 0);
	hints.ai_family = 77;
	CHECK("addrinfo-family", refused(rule_text, "7471", &hints) == EAI_FAMILY);
	ok("addrinfo-family");

	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NOROUTE };
	res = got("addrinfo-noroute", rule_text, "7471", &hints);
	CHECK("addrinfo-noroute", !res->ai_route_len && !res->ai_connect_len);
	rdma_freeaddrinfo(res);
	ok("addrinfo-noroute");
}

static void passive(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE }, *res;

	res = got("addrinfo-passive", rule_text, "7471", &hints);
	CHECK("addrinfo-passive", res->ai_flags == RAI_PASSIVE && !res->ai_dst_addr && !res->ai_dst_len);
	CHECK("addrinfo-passive", res->ai_src_addr && !memcmp(res->ai_src_addr, address(7471), res->ai_src_len));
	rdma_freeaddrinfo(res);
	ok("addrinfo-passive");

	hints.ai_family = AF_INET;
	res = got("addrinfo-wildcard", NULL, "7471", &hints);
	CHECK("addrinfo-wildcard", res->ai_src_addr->sa_family == AF_INET && port_in(res->ai_src_addr) == 7471);
	CHECK("addrinfo-wildcard", ((struct sockaddr_in *)res->ai_src_addr)->sin_addr.s_addr == INADDR_ANY);
	rdma_freeaddrinfo(res);
	hints.ai_flags = 0;
	res = got("addrinfo-wildcard", NULL, "7471", &hints);
	CHECK("addrinfo-wildcard", ((struct sockaddr_in *)res->ai_dst_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(res);
	ok("addrinfo-wildcard");
}

static void services(void)
{
	struct servent *http = getservbyname("http", "tcp");
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP };

	if (http) {
		struct rdma_addrinfo *res = got("addrinfo-service", rule_text, "http", &hints);

		CHECK("addrinfo-service", port_in(res->ai_dst_addr) == ntohs(http->s_port));
		rdma_freeaddrinfo(res);
	} else {
		CHECK("addrinfo-service", refused(rule_text, "http", &hints) == EAI_SERVICE);
	}
	CHECK("addrinfo-service", refused(rule_text, "no such service", &hints) == EAI_SERVICE);
	ok("addrinfo-service");
}

static void hints_alone(void)
{
	struct sockaddr_storage source = rule_base, destination = rule_base;
	socklen_t len = rule_base.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	struct rdma_addrinfo hints = { .ai_family = rule_base.ss_family, .ai_port_space = RDMA_PS_TCP,
				       .ai_qp_type = IBV_QPT_RC, .ai_src_addr = (struct sockaddr *)&source,
				       .ai_src_len = len };
	struct rdma_addrinfo *res;

	((struct sockaddr_in *)&source)->sin_port = htons(4711);
	res = got("addrinfo-source", rule_text, "7471", &hints);
	CHECK("addrinfo-source", res->ai_src_len == len && !memcmp(res->ai_src_addr, &source, len));
	CHECK("addrinfo-source", res->ai_src_addr != hints.ai_src_addr && port_in(res->ai_dst_addr) == 7471);
	rdma_freeaddrinfo(res);
	ok("addrinfo-source");

	hints.ai_dst_addr = (struct sockaddr *)&destination;
	hints.ai_dst_len = len;
	((struct sockaddr_in *)&destination)->sin_port = htons(4712);
	res = got("addrinfo-hints", NULL, NULL, &hints);
	CHECK("addrinfo-hints", res->ai_family == rule_base.ss_family && res->ai_port_space == RDMA_PS_TCP);
	CHECK("addrinfo-hints", res->ai_qp_type == IBV_QPT_RC && res->ai_flags == 0 && !res->ai_next);
	CHECK("addrinfo-hints", res->ai_src_len == len && !memcmp(res->ai_src_addr, &source, len));
	CHECK("addrinfo-hints", res->ai_dst_len == len && !memcmp(res->ai_dst_addr, &destination, len));
	rdma_freeaddrinfo(res);
	ok("addrinfo-hints");

	struct rdma_addrinfo *none = NULL;
	FAILS("addrinfo-einval", rdma_getaddrinfo(NULL, NULL, NULL, &none), EINVAL);
	CHECK("addrinfo-einval", none == NULL);
	ok("addrinfo-einval");
}

/* A program that frees what it took out of an entry, and puts memory of its own in. */
static void memory(void)
{
	struct rdma_addrinfo *res = got("addrinfo-malloc", rule_text, "7471", NULL);

	free(res->ai_dst_addr);
	res->ai_dst_addr = malloc(16);
	res->ai_src_canonname = strdup("mine");
	res->ai_connect = malloc(36);
	CHECK("addrinfo-malloc", res->ai_dst_addr && res->ai_src_canonname && res->ai_connect);
	rdma_freeaddrinfo(res);
	rdma_freeaddrinfo(NULL);
	ok("addrinfo-malloc");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(kinds());
	PART(numeric());
	PART(passive());
	PART(services());
	PART(hints_alone());
	PART(memory());
	return 0;
}
