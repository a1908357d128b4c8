/* rdma_getaddrinfo and rdma_resolve_addrinfo where this library goes further than rdma-core 44, and calls that would crash there. */
#include "rule.h"
#include <dlfcn.h>
#include <net/if.h>
#include <netdb.h>
#include <rdma/rdma_verbs.h>

static struct rdma_addrinfo *got(const char *rule, const char *node, const char *service, struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo *res = NULL;
	int answer = rdma_getaddrinfo(node, service, hints, &res);

	if (answer)
		FAIL(rule, "rdma_getaddrinfo answers %d", answer);
	CHECK(rule, res != NULL);
	return res;
}

static int length(struct rdma_addrinfo *res)
{
	int length = 0;

	for (; res; res = res->ai_next)
		length++;
	return length;
}

static void several(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE };
	struct rdma_addrinfo *res = got("addrinfo-several", NULL, "7471", &hints), *one;
	int v4 = 0, v6 = 0;

	CHECK("addrinfo-several", length(res) == 2);
	for (one = res; one; one = one->ai_next) {
		v4 += one->ai_family == AF_INET;
		v6 += one->ai_family == AF_INET6;
		CHECK("addrinfo-several", one->ai_flags == RAI_PASSIVE && one->ai_qp_type == IBV_QPT_RC);
	}
	CHECK("addrinfo-several", v4 == 1 && v6 == 1);
	rdma_freeaddrinfo(res);
	/* A number is one address. */
	res = got("addrinfo-several", rule_text, "7471", NULL);
	CHECK("addrinfo-several", length(res) == 1);
	rdma_freeaddrinfo(res);
	ok("addrinfo-several");

	/* From a source of IPv4 an address of IPv6 is not reached. */
	struct sockaddr_in source = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	hints = (struct rdma_addrinfo){ .ai_src_addr = (struct sockaddr *)&source, .ai_src_len = sizeof source };
	res = got("addrinfo-source-family", "localhost", "7471", &hints);
	for (one = res; one; one = one->ai_next)
		CHECK("addrinfo-source-family", one->ai_family == AF_INET);
	rdma_freeaddrinfo(res);
	ok("addrinfo-source-family");
}

/* Whoever takes the first entry for a listener hears both families. */
static void *come(void *with)
{
	uint16_t *port = with;
	struct rdma_cm_id *id = new_id("addrinfo-both", NULL, RDMA_PS_TCP);

	CHECK("addrinfo-both", rdma_resolve_addr(id, NULL, address(*port), 2000) == 0);
	CHECK("addrinfo-both", rdma_resolve_route(id, 2000) == 0);
	new_qp("addrinfo-both", id);
	FAILS("addrinfo-both", rdma_connect(id, NULL), ECONNREFUSED);
	CHECK("addrinfo-both", id->event->status == 28);
	destroy("addrinfo-both", id);
	return NULL;
}

static void both_families(void)
{
	FILE *file = fopen("/proc/sys/net/ipv6/bindv6only", "r");
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE }, *res;
	struct rdma_cm_id *listener, *child;
	uint16_t port;
	pthread_t active;

	/* A host that is set up otherwise listens for one family, and has nothing to show. */
	if (!file || fgetc(file) != '0') {
		printf("not run: bindv6only\n");
		exit(1);
	}
	fclose(file);
	res = got("addrinfo-both", NULL, "0", &hints);
	CHECK("addrinfo-both", res->ai_family == AF_INET6);
	CHECK("addrinfo-both", rdma_create_ep(&listener, res, NULL, NULL) == 0);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-both", rdma_listen(listener, 1) == 0);
	port = port_of(listener);
	active = thread("addrinfo-both", come, &port);
	CHECK("addrinfo-both", rdma_get_request(listener, &child) == 0);
	CHECK("addrinfo-both", rdma_get_local_addr(child)->sa_family == rule_base.ss_family);
	CHECK("addrinfo-both", rdma_reject(child, NULL, 0) == 0);
	pthread_join(active, NULL);
	rdma_destroy_ep(child);
	rdma_destroy_ep(listener);
	ok("addrinfo-both");
}

static void interfaces(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *res, *none = NULL;
	struct sockaddr_in *in;
	struct sockaddr_in6 *in6;
	char by_number[64];

	res = got("addrinfo-interface", "fe80::1%lo", "7471", &hints);
	in6 = (struct sockaddr_in6 *)res->ai_dst_addr;
	CHECK("addrinfo-interface", in6->sin6_scope_id == if_nametoindex("lo") && !res->ai_src_addr);
	rdma_freeaddrinfo(res);

	res = got("addrinfo-interface", "127.0.0.5%lo", "7471", &hints);
	in = (struct sockaddr_in *)res->ai_dst_addr;
	CHECK("addrinfo-interface", in->sin_addr.s_addr == htonl(0x7F000005) && ntohs(in->sin_port) == 7471);
	in = (struct sockaddr_in *)res->ai_src_addr;
	CHECK("addrinfo-interface", in && in->sin_family == AF_INET && in->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK("addrinfo-interface", in->sin_port == 0);
	rdma_freeaddrinfo(res);

	snprintf(by_number, sizeof by_number, "::1%%%u", if_nametoindex("lo"));
	res = got("addrinfo-interface", by_number, "7471", &hints);
	in6 = (struct sockaddr_in6 *)res->ai_src_addr;
	CHECK("addrinfo-interface", in6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr));
	rdma_freeaddrinfo(res);

	hints.ai_flags |= RAI_PASSIVE;
	res = got("addrinfo-interface", "0.0.0.0%lo", "7471", &hints);
	in = (struct sockaddr_in *)res->ai_src_addr;
	CHECK("addrinfo-interface", in->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && ntohs(in->sin_port) == 7471);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-interface", rdma_getaddrinfo("192.0.2.1%lo", "7471", &hints, &none) == EAI_NONAME);
	CHECK("addrinfo-interface", rdma_getaddrinfo("127.0.0.1%nosuch0", "7471", &hints, &none) == EAI_NONAME);
	CHECK("addrinfo-interface", none == NULL);
	ok("addrinfo-interface");
}

struct native {
	uint16_t family, pkey;
	uint32_t flow;
	uint8_t gid[16];
	uint64_t sid, mask, scope;
};

static void gids(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST | RAI_FAMILY, .ai_family = 27,
				       .ai_port_space = RDMA_PS_TCP }, *res, *none = NULL;
	struct native *native;

	res = got("addrinfo-gid", "fe80::5", "7471", &hints);
	native = (struct native *)res->ai_dst_addr;
	CHECK("addrinfo-gid", res->ai_family == 27 && res->ai_dst_len == sizeof *native && native->family == 27);
	CHECK("addrinfo-gid", native->pkey == 0xFFFF && native->gid[0] == 0xFE && native->gid[15] == 5);
	CHECK("addrinfo-gid", be64toh(native->sid) == 0x01061D2F && native->mask == ~0ULL);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-gid", rdma_getaddrinfo("127.0.0.1", "7471", &hints, &none) != 0);
	/* Without RAI_FAMILY the family is no demand. */
	hints.ai_flags = RAI_NUMERICHOST;
	res = got("addrinfo-gid", rule_text, "7471", &hints);
	CHECK("addrinfo-gid", res->ai_family == rule_base.ss_family);
	rdma_freeaddrinfo(res);
	ok("addrinfo-gid");
}

#define SERVICE_RECORDS 0x10
#define BY_NAME 0x20

static void records(void)
{
	struct rdma_addrinfo hints = { .ai_flags = SERVICE_RECORDS }, *res = NULL;

	FAILS("addrinfo-records", rdma_getaddrinfo(rule_text, "7471", &hints, &res), EOPNOTSUPP);
	FAILS("addrinfo-records", rdma_getaddrinfo(NULL, NULL, &hints, &res), EINVAL);
	FAILS("addrinfo-records", rdma_getaddrinfo(NULL, "7471", &hints, &res), ENOENT);
	hints.ai_flags |= BY_NAME;
	FAILS("addrinfo-records", rdma_getaddrinfo(NULL, "7471", &hints, &res), EOPNOTSUPP);
	FAILS("addrinfo-records", rdma_getaddrinfo(rule_text, "7471", NULL, NULL), EINVAL);
	ok("addrinfo-records");
}

/* The calls of rdma-core 60, which older headers do not declare. */
static int (*resolve_addrinfo)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
static int (*query_addrinfo)(struct rdma_cm_id *, struct rdma_addrinfo **);

static void as_event(void)
{
	struct rdma_event_channel *channel = new_channel("addrinfo-event");
	struct rdma_cm_id *id = new_id("addrinfo-event", channel, RDMA_PS_TCP), *sync;
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *res = NULL;

	*(void **)&resolve_addrinfo = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	*(void **)&query_addrinfo = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	CHECK("addrinfo-event", resolve_addrinfo && query_addrinfo);
	FAILS("addrinfo-event", query_addrinfo(id, &res), ENOENT);
	CHECK("addrinfo-event", resolve_addrinfo(id, rule_text, "7471", &hints) == 0);
	FAILS("addrinfo-busy", resolve_addrinfo(id, rule_text, "7471", &hints), EBUSY);
	expect("addrinfo-event", channel, 16);
	FAILS("addrinfo-busy", resolve_addrinfo(id, rule_text, "7471", &hints), EBUSY);
	CHECK("addrinfo-event", query_addrinfo(id, &res) == 0 && res);
	CHECK("addrinfo-event", !memcmp(res->ai_dst_addr, address(7471), res->ai_dst_len));
	rdma_freeaddrinfo(res);
	FAILS("addrinfo-event", query_addrinfo(id, &res), ENOENT);
	ok("addrinfo-busy");
	/* What fails leaves room for another. */
	FAILS("addrinfo-event", resolve_addrinfo(id, "no.number", "7471", &hints), ENOENT);
	CHECK("addrinfo-event", resolve_addrinfo(id, rule_text, "7471", &hints) == 0);
	/* An answer that nobody took goes with the identifier. */
	CHECK("addrinfo-event", rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	sync = new_id("addrinfo-event", NULL, RDMA_PS_TCP);
	CHECK("addrinfo-event", resolve_addrinfo(sync, rule_text, "7471", &hints) == 0);
	CHECK("addrinfo-event", sync->event && sync->event->event == 16);
	CHECK("addrinfo-event", query_addrinfo(sync, &res) == 0);
	rdma_freeaddrinfo(res);
	CHECK("addrinfo-event", rdma_destroy_id(sync) == 0);
	ok("addrinfo-event");
}

/* Calls without what they need, which crash in rdma-core. */
static void nothing_given(void)
{
	struct rdma_event_channel *channel = new_channel("ep-einval");
	struct rdma_cm_id *id = new_id("ep-einval", channel, RDMA_PS_TCP), *other = NULL;
	struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	struct rdma_addrinfo info = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC };
	int mask;

	FAILS("ep-einval", rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS("ep-einval", rdma_create_qp(NULL, NULL, &attr), EINVAL);
	FAILS("ep-einval", rdma_create_qp(id, NULL, NULL), EINVAL);
	FAILS("ep-einval", rdma_create_srq(id, NULL, &srq), EINVAL);
	FAILS("ep-einval", rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	FAILS("ep-einval", rdma_create_ep(&other, NULL, NULL, NULL), EINVAL);
	FAILS("ep-einval", rdma_create_ep(&other, &info, NULL, NULL), EINVAL);
	FAILS("ep-einval", rdma_get_request(NULL, &other), EINVAL);
	FAILS("ep-einval", rdma_join_multicast(NULL, address(0), NULL), EINVAL);
	FAILS("ep-einval", rdma_leave_multicast(NULL, address(0)), EINVAL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	CHECK("ep-einval", rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	ok("ep-einval");
}

/* A request whose queue pair cannot be made is refused, and the listener goes on. */
static void *ask(void *with)
{
	uint16_t *port = with;
	struct rdma_cm_id *id = new_id("ep-request-refused", NULL, RDMA_PS_TCP);

	CHECK("ep-request-refused", rdma_resolve_addr(id, NULL, address(*port), 2000) == 0);
	CHECK("ep-request-refused", rdma_resolve_route(id, 2000) == 0);
	new_qp("ep-request-refused", id);
	FAILS("ep-request-refused", rdma_connect(id, NULL), ECONNREFUSED);
	destroy("ep-request-refused", id);
	return NULL;
}

static void unmakeable(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST };
	struct rdma_addrinfo *res = got("ep-request-refused", rule_text, "0", &hints);
	struct ibv_qp_init_attr attr = { .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 10000 } };
	struct rdma_cm_id *listener, *child = NULL;
	uint16_t port;
	pthread_t active;

	CHECK("ep-request-refused", rdma_create_ep(&listener, res, NULL, &attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK("ep-request-refused", rdma_listen(listener, 4) == 0);
	port = port_of(listener);
	for (int i = 0; i < 2; i++) {
		active = thread("ep-request-refused", ask, &port);
		FAILS("ep-request-refused", rdma_get_request(listener, &child), EINVAL);
		CHECK("ep-request-refused", child == NULL && listener->event);
		CHECK("ep-request-refused", listener->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && !listener->event->id);
		pthread_join(active, NULL);
	}
	rdma_destroy_ep(listener);
	ok("ep-request-refused");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(several());
	PART(both_families());
	PART(interfaces());
	PART(gids());
	PART(records());
	PART(as_event());
	PART(nothing_given());
	PART(unmakeable());
	return 0;
}
