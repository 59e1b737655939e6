# docker build -t tidegate .
# docker run --rm -p 127.0.0.1:8080:8080 tidegate
# deploy/README.md has more: policies of yours, a proxy in another container, stopping.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --package tidegate-cli && strip --strip-debug target/dist/tidegate

FROM debian:bookworm-slim
COPY --from=build /src/target/dist/tidegate /usr/local/bin/tidegate
# By which a Redis with TLS is known.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# For store.snapshot; a volume here has the same owner.
RUN install -d -o 65532 -g 65532 -m 0700 /var/lib/tidegate
USER 65532:65532
# Else nobody could reach it from outside of the container. The admin surface stays inside, at 127.0.0.1:9090.
ENV TIDEGATE_HTTP=0.0.0.0:8080
EXPOSE 8080
# There is no curl in the image, and a shell can do it.
HEALTHCHECK CMD bash -c 'exec 3<>/dev/tcp/127.0.0.1/9090 && printf "GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 && grep -q " 200 " <&3'
ENTRYPOINT ["tidegate"]
CMD ["serve"]
