/* Options of identifiers: what they do, and when they can be set. */
#include "rule.h"

#include <infiniband/sa.h>

static int set_int(struct rdma_cm_id *id, int name, int value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof value);
}

static int set_byte(struct rdma_cm_id *id, int name, uint8_t value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof value);
}

static void checks_lengths(void)
{
	const char *rule = "option-length";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	static char large[8192];

	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, large, 4), EINVAL);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, large, 1), EINVAL);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, large, 8), EINVAL);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, large, sizeof large), EINVAL);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, large, 2), EINVAL);
	CHECK(rule, set_byte(id, RDMA_OPTION_ID_TOS, 0) == 0);
	ok(rule);
	rule = "option-unknown";
	FAILS(rule, rdma_set_option(id, 7, 0, large, 4), ENOSYS);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_ID, 77, large, 4), ENOSYS);
	FAILS(rule, rdma_set_option(id, RDMA_OPTION_IB, 77, large, 4), ENOSYS);
	ok(rule);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
}

static void shares_a_port(void)
{
	const char *rule = "option-reuseaddr";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *first = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *second = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *third = new_id(rule, channel, RDMA_PS_TCP);
	uint16_t port;

	CHECK(rule, set_int(first, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	CHECK(rule, set_int(second, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	CHECK(rule, rdma_bind_addr(first, address(0)) == 0);
	port = port_of(first);
	CHECK(rule, rdma_bind_addr(second, address(port)) == 0);
	/* Not with one that has not set it. */
	errno = 0;
	CHECK(rule, rdma_bind_addr(third, address(port)) == -1);
	CHECK(rule, errno == EADDRINUSE || errno == EADDRNOTAVAIL);
	/* The first to listen has it, as the other no longer shares it then. */
	errno = 0;
	CHECK("option-reuseaddr-listen", rdma_listen(first, 1) == -1);
	CHECK("option-reuseaddr-listen", errno == EADDRINUSE || errno == EADDRNOTAVAIL);
	destroy(rule, second);
	CHECK("option-reuseaddr-listen", rdma_listen(first, 1) == 0);
	ok("option-reuseaddr-listen");
	ok(rule);
	rule = "option-reuseaddr-state";
	FAILS(rule, set_int(first, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
	CHECK(rule, set_int(third, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	CHECK(rule, set_int(third, RDMA_OPTION_ID_REUSEADDR, 0) == 0);
	CHECK(rule, rdma_bind_addr(third, address(0)) == 0);
	CHECK(rule, set_int(third, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	FAILS(rule, set_int(third, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
	ok(rule);
	destroy(rule, first);
	destroy(rule, third);
	rdma_destroy_event_channel(channel);
}

static void leaves_a_family_alone(void)
{
	const char *rule = "option-afonly";
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *six = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *four = new_id(rule, channel, RDMA_PS_TCP);

	CHECK(rule, set_int(six, RDMA_OPTION_ID_AFONLY, 1) == 0);
	CHECK(rule, rdma_bind_addr(six, (struct sockaddr *)&any6) == 0);
	any4.sin_port = rdma_get_src_port(six);
	CHECK(rule, rdma_bind_addr(four, (struct sockaddr *)&any4) == 0);
	destroy(rule, four);
	destroy(rule, six);
	/* Both families otherwise. */
	six = new_id(rule, channel, RDMA_PS_TCP);
	four = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, set_int(six, RDMA_OPTION_ID_AFONLY, 0) == 0);
	any6.sin6_port = 0;
	CHECK(rule, rdma_bind_addr(six, (struct sockaddr *)&any6) == 0);
	any4.sin_port = rdma_get_src_port(six);
	errno = 0;
	CHECK(rule, rdma_bind_addr(four, (struct sockaddr *)&any4) == -1);
	CHECK(rule, errno == EADDRINUSE || errno == EADDRNOTAVAIL);
	ok(rule);
	rule = "option-afonly-state";
	CHECK(rule, set_int(six, RDMA_OPTION_ID_AFONLY, 1) == 0);
	CHECK(rule, rdma_listen(six, 1) == 0);
	FAILS(rule, set_int(six, RDMA_OPTION_ID_AFONLY, 1), EINVAL);
	ok(rule);
	destroy(rule, four);
	destroy(rule, six);
	rdma_destroy_event_channel(channel);
}

static void sets_a_type_of_service(void)
{
	const char *rule = "option-tos";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	CHECK(rule, set_byte(id, RDMA_OPTION_ID_TOS, 0x28) == 0);
	resolve(rule, id, 1);
	CHECK(rule, id->route.path_rec->traffic_class == 0x28);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void sets_a_timeout(void)
{
	const char *rule = "option-ack-timeout";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	struct rdma_cm_id *datagram = new_id(rule, other, RDMA_PS_UDP);
	struct ibv_qp_init_attr init;
	struct rdma_cm_event *event;
	struct rdma_cm_id *child;
	struct ibv_qp_attr attr;

	FAILS(rule, set_byte(datagram, RDMA_OPTION_ID_ACK_TIMEOUT, 10), EINVAL);
	CHECK(rule, set_byte(id, RDMA_OPTION_ID_ACK_TIMEOUT, 17) == 0);
	resolve(rule, id, port_of(listener));
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	new_qp(rule, child);
	CHECK(rule, rdma_accept(child, NULL) == 0);
	expect(rule, other, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, ibv_query_qp(id->qp, &attr, IBV_QP_TIMEOUT, &init) == 0);
	CHECK(rule, attr.timeout == 17);
	destroy(rule, id);
	destroy(rule, child);
	destroy(rule, datagram);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	ok(rule);
}

/* The path that resolving finds, in the form of the option. */
static struct ibv_path_data path_of(const char *rule, uint16_t port)
{
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct ibv_path_data data = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL };
	struct ibv_sa_path_rec *found;

	resolve(rule, id, port);
	found = id->route.path_rec;
	memcpy(&data.path.dgid, &found->dgid, 16);
	memcpy(&data.path.sgid, &found->sgid, 16);
	data.path.service_id = htobe64(0x01060000ULL | port);
	data.path.flowlabel_hoplimit = htobe32(be32toh(found->flow_label) << 8 | found->hop_limit);
	data.path.tclass = found->traffic_class;
	data.path.reversible_numpath = 0x80 | 1;
	data.path.pkey = htobe16(0xffff);
	data.path.mtu = (uint8_t)(found->mtu | 2 << 6);
	data.path.rate = (uint8_t)(found->rate | 2 << 6);
	data.path.packetlifetime = (uint8_t)(found->packet_life_time | 2 << 6);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	return data;
}

static void takes_a_path(void)
{
	const char *rule = "option-path";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	struct ibv_path_data usable = path_of(rule, port_of(listener));
	static struct ibv_path_data many[200];

	FAILS("option-value", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &usable, sizeof usable), EINVAL);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(port_of(listener)), 2000) == 0);
	expect(rule, other, RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS("option-length", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &usable, 71), EINVAL);
	FAILS("option-length", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &usable, 0), EINVAL);
	/* Only the flags that say everything are meant. */
	many[0] = usable;
	many[0].flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY;
	FAILS("option-path-first", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, many, sizeof many[0]),
	      EINVAL);
	for (int i = 1; i < 200; i++) {
		many[i] = many[0];
		many[i].path.mtu = 2 << 6 | 1;
	}
	many[150] = usable;
	many[151] = usable;
	many[151].path.mtu = 2 << 6 | 1;
	CHECK("option-path-first", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, many, sizeof many) == 0);
	expect(rule, other, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK("option-path-first", id->route.num_paths == 1 && id->route.path_rec->mtu == (usable.path.mtu & 0x3f));
	FAILS("option-value", rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &usable, sizeof usable), EINVAL);
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	expect(rule, channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	ok(rule);
	ok("option-path-first");
	ok("option-value");
	rdma_destroy_event_channel(channel);
	destroy(rule, id);
	rdma_destroy_event_channel(other);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(checks_lengths());
	PART(shares_a_port());
	PART(leaves_a_family_alone());
	PART(sets_a_type_of_service());
	PART(sets_a_timeout());
	PART(takes_a_path());
	return 0;
}
