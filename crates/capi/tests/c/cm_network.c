/* Peers that do not answer, addresses and interfaces that go away, in a network of the program's own. */
#include "private.h"

#include <dlfcn.h>

static void run(const char *rule, const char *command)
{
	if (system(command) != 0)
		FAIL(rule, "%s", command);
}

/* An identifier that listens at an address, which must not be long in coming. */
static struct rdma_cm_id *listener_at(const char *rule, struct rdma_event_channel *channel, const char *text)
{
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct sockaddr_in in = { .sin_family = AF_INET };

	inet_pton(AF_INET, text, &in.sin_addr);
	for (int i = 0; i < 500 && rdma_bind_addr(id, (struct sockaddr *)&in); i++)
		usleep(10000);
	CHECK(rule, id->verbs != NULL);
	CHECK(rule, rdma_listen(id, 1) == 0);
	return id;
}

static void makes_an_interface(const char *rule)
{
	run(rule, "ip link add near type veth peer name far");
	run(rule, "ip address add 10.99.0.1/24 dev near && ip address add 10.99.0.2/24 dev near");
	run(rule, "ip link set near up && ip link set far up");
}

static void loses_its_address(void)
{
	const char *rule = "event-addr-change";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = listener_at(rule, channel, "10.99.0.2");
	struct rdma_cm_event *event;

	run(rule, "ip address del 10.99.0.2/24 dev near");
	event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_CHANGE);
	CHECK(rule, event->id == id && event->status == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void loses_its_interface(void)
{
	const char *rule = "event-removal";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = listener_at(rule, channel, "10.99.0.1");
	struct rdma_cm_event *event = NULL;

	run(rule, "ip link del near");
	/* Its address goes with it, and may be told first. */
	CHECK(rule, readable(channel->fd, LONG) && rdma_get_cm_event(channel, &event) == 0);
	if (event->event == RDMA_CM_EVENT_ADDR_CHANGE) {
		CHECK(rule, rdma_ack_cm_event(event) == 0);
		event = event_of(rule, channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	}
	CHECK(rule, event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	errno = 0;
	CHECK(rule, rdma_listen(id, 1) == -1 && errno != 0);
	CHECK(rule, rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* An option of the soft host: how long connecting may take altogether. */
#define LEVEL_OARLOCK 0x6f61726c
#define CONNECT_DEADLINE 3

static void is_not_answered(void)
{
	const char *rule = "connect-unreachable";
	struct rdma_event_channel *channel = new_channel(rule), *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	uint32_t milliseconds = 200;
	struct rdma_cm_event *event;

	CHECK(rule, rdma_set_option(id, LEVEL_OARLOCK, CONNECT_DEADLINE, &milliseconds, sizeof milliseconds) == 0);
	resolve(rule, id, port_of(listener));
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	event = event_of(rule, other, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(rule, event->status == -ETIMEDOUT);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	id = new_id(rule, NULL, RDMA_PS_TCP);
	CHECK(rule, rdma_set_option(id, LEVEL_OARLOCK, CONNECT_DEADLINE, &milliseconds, sizeof milliseconds) == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(port_of(listener)), 2000) == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	new_qp(rule, id);
	FAILS(rule, rdma_connect(id, NULL), ETIMEDOUT);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_UNREACHABLE);
	destroy(rule, id);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* Requests that a synchronous listener handed out do not hold up its end, although nobody acknowledged them. */
static void *asks(void *with)
{
	struct rdma_event_channel *channel = new_channel("id-destroy-listener");
	struct rdma_cm_id *id = new_id("id-destroy-listener", channel, RDMA_PS_TCP);

	resolve("id-destroy-listener", id, *(uint16_t *)with);
	new_qp("id-destroy-listener", id);
	CHECK("id-destroy-listener", rdma_connect(id, NULL) == 0);
	expect("id-destroy-listener", channel, RDMA_CM_EVENT_ESTABLISHED);
	destroy("id-destroy-listener", id);
	rdma_destroy_event_channel(channel);
	return NULL;
}

static void ends_before_its_child(void)
{
	const char *rule = "id-destroy-listener";
	struct rdma_cm_id *listener = new_listener(rule, NULL, RDMA_PS_TCP);
	uint16_t port = port_of(listener);
	pthread_t made = thread(rule, asks, &port);
	struct rdma_cm_id *id;

	CHECK(rule, rdma_get_request(listener, &id) == 0);
	CHECK(rule, id->event != NULL);
	CHECK(rule, rdma_destroy_id(listener) == 0);
	/* The event is good, and so is its identifier. */
	CHECK(rule, id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->event->id == id);
	new_qp(rule, id);
	CHECK(rule, rdma_accept(id, &id->event->param.conn) == 0);
	CHECK(rule, pthread_join(made, NULL) == 0);
	destroy(rule, id);
	ok(rule);
}

/* The call is of a later library than the headers. */
static void is_written(void)
{
	const char *rule = "event-user";
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t);
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	uint64_t number;

	*(void **)&write_event = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	CHECK(rule, write_event != NULL);
	FAILS(rule, write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
	CHECK(rule, write_event(id, 18, -7, 0x123456789abcdef0) == 0);
	event = event_of(rule, channel, (enum rdma_cm_event_type)18);
	memcpy(&number, &event->param, sizeof number);
	CHECK(rule, event->id == id && event->status == -7 && number == 0x123456789abcdef0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void is_no_address(void)
{
	const char *rule = "id-address-family";
	struct sockaddr_storage native = { .ss_family = 27 };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	FAILS(rule, rdma_bind_addr(id, (struct sockaddr *)&native), EAFNOSUPPORT);
	FAILS(rule, rdma_resolve_addr(id, NULL, (struct sockaddr *)&native, 1000), EAFNOSUPPORT);
	native.ss_family = AF_UNIX;
	FAILS(rule, rdma_bind_addr(id, (struct sockaddr *)&native), EINVAL);
	FAILS(rule, rdma_bind_addr(id, NULL), EINVAL);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	own_network("connect-unreachable");
	PART(is_not_answered());
	PART(ends_before_its_child());
	PART(is_written());
	PART(is_no_address());
	PART(makes_an_interface("event-addr-change"));
	PART(loses_its_address());
	PART(loses_its_interface());
	return 0;
}
