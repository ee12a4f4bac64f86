package penstock.kafka;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.auth.SaslExtensions;
import org.apache.kafka.common.security.auth.SaslExtensionsCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;

/**
 * Logs a Java client of Kafka in with the token that a file has now. Kafka's own handler reads the file once, and a
 * process that runs for longer than its first token would be locked out.
 *
 * The login line gives `tokenFile`, and SASL extensions as `extension_NAME`.
 */
public final class TokenFileLogin implements AuthenticateCallbackHandler {
    private static final long OPAQUE = 60000L;  // milliseconds after which a token that does not say is read again

    private String file;
    private final Map extensions = new HashMap();

    public void configure(Map configs, String mechanism, List entries) {
        Map options = ((AppConfigurationEntry) entries.get(0)).getOptions();
        this.file = String.valueOf(options.get("tokenFile"));
        for (Iterator i = options.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            String name = (String) entry.getKey();
            if (name.startsWith("extension_")) this.extensions.put(name.substring(10), entry.getValue());
        }
    }

    public void handle(Callback[] callbacks) throws IOException, UnsupportedCallbackException {
        for (int i = 0; i < callbacks.length; i++) {
            if (callbacks[i] instanceof OAuthBearerTokenCallback) {
                ((OAuthBearerTokenCallback) callbacks[i]).token(new Token(this.file));
            } else if (callbacks[i] instanceof SaslExtensionsCallback) {
                ((SaslExtensionsCallback) callbacks[i]).extensions(new SaslExtensions(this.extensions));
            } else {
                throw new UnsupportedCallbackException(callbacks[i]);
            }
        }
    }

    public void close() { }

    private static final class Token implements OAuthBearerToken {
        private final String value, principal;
        private final long started, expires;

        Token(String file) throws IOException {
            this.value = new String(Files.readAllBytes(Paths.get(file, new String[0])), StandardCharsets.UTF_8).trim();
            this.started = System.currentTimeMillis();
            String principal = file;
            long expires = this.started + OPAQUE;
            String[] parts = this.value.split("\\.");
            if (parts.length == 3) {
                JsonNode claims = new ObjectMapper().readTree(Base64.getUrlDecoder().decode(parts[1]));
                if (claims.hasNonNull("sub")) principal = claims.get("sub").asText();
                if (claims.hasNonNull("exp")) expires = (long) (claims.get("exp").asDouble() * 1000);
            }
            if (expires <= this.started) throw new IOException("the token in " + file + " has expired");
            this.principal = principal;
            this.expires = expires;
        }

        public String value() { return this.value; }
        public Set scope() { return Collections.EMPTY_SET; }
        public long lifetimeMs() { return this.expires; }
        public String principalName() { return this.principal; }
        public Long startTimeMs() { return Long.valueOf(this.started); }
    }
}
