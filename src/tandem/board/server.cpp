// SPDX-License-Identifier: Apache-2.0
#include "tandem/board/server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tandem/base/error.h"
#include "tandem/base/file/descriptor.h"
#include "tandem/net/http_server.h"
#include "tandem/net/prometheus.h"
#include "tandem/board/run_folder.h"

namespace tandem::board {
namespace {

constexpr const char* kHost = "127.0.0.1";
constexpr int kPortsToTry = 100;

const char* media_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

int64_t number(const httplib::Request& request, const char* key) {
  return request.has_param(key) ? std::strtoll(request.get_param_value(key).c_str(), nullptr, 10) : 0;
}

PageRequest page_of(const httplib::Request& request) {
  return {number(request, "step"), number(request, "page"), request.get_param_value("search"), request.get_param_value("sort")};
}

// By name alone: a port may be forwarded. A page of another host whose name leads here names that host.
bool names_this_machine(const std::string& host) {
  for (const std::string_view name : {"127.0.0.1", "localhost", "[::1]"})
    if (host.starts_with(name) && (host.size() == name.size() || host[name.size()] == ':')) return true;
  return false;
}

// Before any body is read. The page asks for things alone.
httplib::Server::HandlerResponse refuse_strangers(const httplib::Request& request, httplib::Response& response) {
  const bool known = names_this_machine(request.get_header_value("Host"));
  const bool asks = request.method == "GET" || request.method == "HEAD";
  if (known && asks) return httplib::Server::HandlerResponse::Unhandled;
  response.status = known ? 405 : 403;
  response.set_content(known ? "The board answers GET.\n" : "The board is for http://127.0.0.1 and http://localhost.\n", "text/plain");
  return httplib::Server::HandlerResponse::Handled;
}

// httplib's default also sets SO_REUSEPORT, with which two servers would share one port.
void own_the_port(socket_t socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

int first_free_port(int from) {
  for (int port = from; port < from + kPortsToTry && port < 65536; ++port) {
    const Descriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    own_the_port(probe.number());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_bound = ::bind(probe.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (is_bound && ::listen(probe.number(), 1) == 0) return port;
  }
  return 0;
}

}  // namespace

struct Server::Http {
  explicit Http(const std::string& run_dir) : folder(run_dir), server(net::HttpLimits()) {
    server.set_socket_options(own_the_port);
    server.set_pre_routing_handler(refuse_strangers);
    server.set_default_headers({{"Cache-Control", "no-store"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'"}});
    for (const Asset& asset : assets()) serve(asset);
    answer("/api/run", [this](const auto&) { return folder.run(); });
    answer("/api/metrics", [this](const auto& request) { return folder.metrics(number(request, "from_line")); });
    answer("/metrics", [this](const auto&) { return folder.prometheus(); }, net::kPrometheusText);
    answer("/api/timeline", [this](const auto&) { return folder.timeline(); });
    answer("/api/steps", [this](const auto&) { return folder.steps(); });
    answer("/api/samples", [this](const auto& request) { return folder.samples(page_of(request)); });
    answer("/api/tokens", [this](const auto& request) {
      return folder.tokens(number(request, "step"), number(request, "group"), number(request, "sample"));
    });
    answer("/api/evals", [this](const auto& request) {
      AnswersRequest asked{page_of(request), std::nullopt, request.get_param_value("show")};
      if (request.has_param("since")) asked.since = number(request, "since");
      if (request.has_param("set")) asked.set = request.get_param_value("set");
      return folder.evals(asked);
    });
  }

  void serve(const Asset& asset) {
    const auto handler = [&asset](const httplib::Request&, httplib::Response& response) {
      response.set_content(asset.bytes.data(), asset.bytes.size(), media_type(asset.name));
    };
    server.Get("/" + std::string(asset.name), handler);
    if (asset.name == "index.html") server.Get("/", handler);
  }

  void answer(const char* path, std::function<std::string(const httplib::Request&)> make, const char* type = "application/json") {
    server.Get(path, [make, type](const httplib::Request& request, httplib::Response& response) {
      try {
        response.set_content(make(request), type);
      } catch (const std::exception& error) {
        response.status = 404;
        response.set_content(error.what(), "text/plain; charset=utf-8");
      }
    });
  }

  RunFolder folder;
  net::HttpServer server;
  int port = 0;
};

Server::Server(const std::string& run_dir, int port) : http_(std::make_unique<Http>(run_dir)) {
  const auto taken = [](const std::string& which, int free_port) {
    return UserError("--port " + which, "cannot be bound on 127.0.0.1",
                     free_port ? "try --port " + std::to_string(free_port) : "free a port");
  };
  if (port < 0 || port > 65535) throw UserError("--port " + std::to_string(port), "no such port", "1 to 65535, or 0 for a free one");
  http_->port = port ? port : first_free_port(kFirstPort);
  if (!http_->port || !http_->server.bind_to_port(kHost, http_->port)) throw taken(std::to_string(port), first_free_port(port + 1));
}

Server::~Server() = default;

int Server::port() const { return http_->port; }

std::string Server::url() const { return "http://" + std::string(kHost) + ":" + std::to_string(port()) + "/"; }

void Server::run(const std::atomic<bool>& stop) {
  std::atomic<bool> ended = false;
  std::thread watch([&] {
    while (!ended) {
      http_->server.tend();
      if (stop) http_->server.stop();  // again and again: it does nothing before the server listens
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  http_->server.listen_after_bind();
  ended = true;
  watch.join();
}

}  // namespace tandem::board
